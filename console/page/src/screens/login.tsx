/** Signing in: by the link of `aliquot console`, by a provider that vouches for people, or by a token. */
import { signal, useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { get, reach } from "../api/client";
import type { LoginOffer } from "../api/types";
import { ended, signIn } from "../live/session";
import { Field, Problem, valueOf } from "../ui/basics";
import { here } from "../ui/router";
import { t } from "../texts";

const REVOKED = "TOKEN_REVOKED";

/** What a link has brought: a code, and whom it lets in as. */
const offered = signal<{ code: string; principal: string } | null>(null);

/** `/login#code=…&principal=…`: taken out of the address. Whoever is here is asked first: a link may come from anybody. */
export function noticeCode(): void {
  const words = new URLSearchParams(location.hash.slice(1));
  const code = words.get("code");
  if (!code) return;
  history.replaceState(null, "", location.pathname === "/login" ? "/" : location.pathname + location.search);
  here.value = new URL(location.href);
  offered.value = { code, principal: words.get("principal") ?? "" };
}

export const isOffered = (): boolean => offered.value !== null;

/** Instead of the screen that is open, whether somebody is signed in or not. */
export function Offer(): JSX.Element | null {
  const busy = useSignal(false);
  const error = useSignal<unknown>(null);
  const offer = offered.value;
  if (!offer) return null;
  const name = <bdi>{offer.principal || t.login.nobody}</bdi>;
  const accept = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (busy.value) return;
    busy.value = true;
    try {
      await signIn(offer);
      offered.value = null;
    } catch (caught) {
      error.value = caught;
    } finally {
      busy.value = false;
    }
  };
  return (
    <main class="alone">
      <h1>
        <span class="mark" aria-hidden="true" /> aliquot
      </h1>
      <p>
        {t.login.linkSignsIn(<strong>{name}</strong>, <code>aliquot console</code>)}
      </p>
      <Problem error={error.value} />
      <form onSubmit={accept}>
        <button class="primary" autofocus aria-disabled={busy.value}>
          {t.login.signInAs(name)}
        </button>
        <button type="button" onClick={() => (offered.value = null)}>
          {t.login.notMe}
        </button>
      </form>
    </main>
  );
}

export function Login(): JSX.Element {
  const token = useSignal("");
  const busy = useSignal(false);
  const error = useSignal<unknown>(null);
  const offer = useSignal<LoginOffer | null>(null);
  useEffect(() => {
    document.title = `${t.login.signIn} · aliquot`;
    get<LoginOffer>("/login").then(
      (found) => (offer.value = found),
      () => undefined,
    );
  }, []);
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (busy.value) return;
    busy.value = true;
    error.value = null;
    try {
      await signIn({ token: token.value.trim() });
    } catch (caught) {
      error.value = caught;
    } finally {
      busy.value = false;
    }
  };
  const back = here.value.pathname + here.value.search;
  return (
    <main class="alone">
      <h1>
        <span class="mark" aria-hidden="true" /> aliquot
      </h1>
      {ended.value && (
        <p class="note warn" role="status">
          {ended.value === REVOKED ? t.login.sessionWasEnded : t.login.sessionHasEnded}
        </p>
      )}
      {reach.value.unreachableMs > 0 && (
        <p class="note warn" role="alert">
          {reach.value.why}
        </p>
      )}
      <Problem error={error.value} />
      {offer.value?.issuer && (
        <>
          <a class="button primary" href={`/login/oidc?back=${encodeURIComponent(back)}`}>
            {t.login.signInWith(<bdi>{hostOf(offer.value.issuer)}</bdi>)}
          </a>
          <p class="dim center">{t.login.or}</p>
        </>
      )}
      <form onSubmit={send}>
        <Field label={t.login.token} hint={t.login.alqAsAliquotAccessToken}>
          <input
            type="password"
            autocomplete="off"
            spellcheck={false}
            required
            value={token.value}
            onInput={(event) => (token.value = valueOf(event))}
          />
        </Field>
        <button class="primary" aria-disabled={busy.value}>
          {busy.value ? t.login.signingIn : t.login.signIn}
        </button>
      </form>
      <p class="dim">
        {t.login.atATerminal(<code>aliquot console</code>)}
      </p>
    </main>
  );
}

function hostOf(issuer: string): string {
  try {
    return new URL(issuer).host;
  } catch {
    return issuer;
  }
}
