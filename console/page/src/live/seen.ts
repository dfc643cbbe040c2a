/**
 * What this tab saw last, for when it is loaded again while the pool does not answer: old answers, with the time they are of,
 * say more than none. They are kept by the tab alone, as long as it is open, and go with whoever logs out.
 */
const KEY = "aliquot-seen";
const ANSWERS_MAX = 64;
const CHARS_MAX = 1_000_000;

interface Seen {
  heardMs: number;
  answers: [string, string][];
}

const answers = new Map<string, string>();
let before: Seen | undefined = stored();

/** When the last of what an earlier load of this tab saw came; 0: nothing is kept. */
export const seenMs = before?.heardMs ?? 0;

/** The pool answers again: what was seen before has no use any more. */
export function note(path: string, text: string): void {
  before = undefined;
  answers.delete(path);
  answers.set(path, text);
  if (answers.size > ANSWERS_MAX) answers.delete(answers.keys().next().value ?? "");
}

/** What an earlier load of this tab was answered, as long as this one has heard nothing. */
export const answerBefore = (path: string): string | undefined => before?.answers.find(([asked]) => asked === path)?.[1];

export function forget(): void {
  before = undefined;
  answers.clear();
  sessionStorage.removeItem(KEY);
}

/** Keep it past this load; `heardMs`: of when it is. Nothing new was seen: what was kept before stays. */
export function keep(heardMs: number): void {
  if (!answers.size) return;
  const text = JSON.stringify({ heardMs, answers: [...answers] } satisfies Seen);
  try {
    if (text.length <= CHARS_MAX) sessionStorage.setItem(KEY, text);
    else sessionStorage.removeItem(KEY);
  } catch {
    sessionStorage.removeItem(KEY); // no room, or none is given
  }
}

function stored(): Seen | undefined {
  try {
    return JSON.parse(sessionStorage.getItem(KEY) ?? "null") ?? undefined;
  } catch {
    return undefined;
  }
}
