/** The frame around the screens: where one can go, who is signed in, and whether what is shown is fresh. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { reach } from "./api/client";
import { nowMs } from "./live/clock";
import { stream } from "./live/events";
import { identity, newLeaderMs, signOut, status } from "./live/session";
import { turnTheme } from "./live/theme";
import { isOffered, Login, Offer } from "./screens/login";
import { SCREENS, screenAt } from "./screens";
import { Name, Waiting } from "./ui/basics";
import { here, Link } from "./ui/router";
import { ago, moment } from "./ui/words";
import { language, t, turnLanguage } from "./texts";

const NEWS_MS = 20_000;

export function App(): JSX.Element {
  if (isOffered()) return <Offer />;
  const who = identity.value;
  if (who === undefined) {
    return (
      <main class="alone">
        <h1>aliquot</h1>
        {reach.value.unreachableMs ? <Reach /> : <Waiting what={t.shell.lookingWhoYouAre} />}
      </main>
    );
  }
  if (who === null) return <Login />;
  return <Frame />;
}

function Frame(): JSX.Element {
  const open = useSignal(false);
  const path = here.value.pathname;
  const screen = screenAt(path);
  const first = useRef(true);
  // Whoever goes to another screen goes on there, at its name; the screen that they came from is gone by now.
  useLayoutEffect(() => {
    if (!first.current) document.querySelector<HTMLElement>("main h1")?.focus();
    first.current = false;
  }, [path]);
  useEffect(() => {
    document.title = `${screen.title} · aliquot`;
    open.value = false;
  }, [path]);
  return (
    <div class="frame">
      <a class="skip" href="#content">
        {t.shell.toContent}
      </a>
      <header class="top">
        <button
          type="button"
          class="menu small"
          aria-expanded={open.value}
          aria-controls="places"
          onClick={() => (open.value = !open.value)}
        >
          {t.shell.menu}
        </button>
        <Link to="/" class="brand" label={t.shell.aliquotToOverview}>
          <span class="mark" aria-hidden="true" />
          aliquot
        </Link>
        <Fresh />
        <span class="who">
          <Name text={identity.value?.principal ?? ""} />
        </span>
        <button type="button" class="small" lang={language === "en" ? "zh-CN" : "en"} onClick={turnLanguage}>
          {t.shell.otherLanguage}
        </button>
        <button type="button" class="small" onClick={turnTheme}>
          {t.shell.lightDark}
        </button>
        <button type="button" class="small" onClick={signOut}>
          {t.shell.logOut}
        </button>
      </header>
      <nav id="places" class={open.value ? "open" : ""} aria-label={t.shell.screens}>
        <ul>
          {SCREENS.filter((each) => !each.hidden).map((each) => (
            <li>
              <Link to={each.path} current={each.path === path || each.path === screen.parent}>
                {each.title}
              </Link>
            </li>
          ))}
        </ul>
      </nav>
      <main id="content" tabIndex={-1}>
        <Reach />
        <screen.Show key={path} />
      </main>
    </div>
  );
}

/** Whether changes arrive by themselves. */
function Fresh(): JSX.Element {
  const { unreachableMs } = reach.value;
  // A stream whose other end stands still brings nothing, and doesn't break.
  const { state, sinceMs } = unreachableMs ? { state: "broken", sinceMs: unreachableMs } : stream.value;
  const late = state === "broken" || (state === "connecting" && nowMs.value - sinceMs > 3000);
  const word = state === "live" ? t.shell.live : late ? t.shell.notLiveSince(moment(sinceMs)) : t.shell.connecting;
  return (
    <span class={`fresh ${late ? "warn" : state}`} role="status">
      <span aria-hidden="true">{state === "live" ? "●" : late ? "▲" : "◌"}</span> {word}
    </span>
  );
}

/** What is wrong between this page and the pool, on one line. */
function Reach(): JSX.Element | null {
  const { unreachableMs, heardMs, why } = reach.value;
  if (unreachableMs) {
    return (
      <p class="note warn" role="alert">
        <strong>{t.shell.noAnswerSince(moment(unreachableMs))}</strong> <bdi>{why.replace(/\.$/, "")}</bdi>
        {t.stop}
        {heardMs ? t.shell.seenIsFrom(moment(heardMs)) : ""}
        {t.shell.itIsAskedAgain}
      </p>
    );
  }
  const pool = status.value;
  if (pool && !pool.granting) {
    return (
      <p class="note warn" role="alert">
        <strong>{t.shell.poolGrantsNothingAtMoment}</strong> <bdi>{pool.not_granting_reason}</bdi>
      </p>
    );
  }
  if (newLeaderMs.value && nowMs.value - newLeaderMs.value < NEWS_MS) {
    return (
      <p class="note warn" role="status">
        <strong>{t.shell.anotherCoordinatorLeads}</strong>{" "}
        {t.shell.leasesWereNotTouched(ago(newLeaderMs.value, nowMs.value))}
      </p>
    );
  }
  return null;
}
