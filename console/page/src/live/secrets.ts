/** Secrets of leases that were asked for in this tab: told once, kept in its memory alone. */
export const secrets = new Map<string, string>();
