/** *Access and audit*: who one is, who else may do what, tokens, and who did what. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { ask, get, Refusal, type Call } from "../api/client";
import { command } from "../api/commands";
import type { Audit, Denial, IssuedToken, Principal, Token } from "../api/types";
import { nowMs } from "../live/clock";
import { useLoaded, type Loaded } from "../live/loading";
import { identity, may } from "../live/session";
import { Action } from "../ui/action";
import { Copyable, Elsewhere, Empty, Fact, Field, Name, Problem, valueOf } from "../ui/basics";
import { Heading, Shown } from "../ui/screen";
import { Table } from "../ui/table";
import { ago, inTime, inWords, moment, UNKNOWN } from "../ui/words";
import { t } from "../texts";

const DAY_MS = 86_400_000;

export function Access(): JSX.Element {
  const who = identity.value;
  const tokens = useLoaded((abort) => get<Token[]>("/tokens", undefined, abort), [], { everyMs: 20_000 });
  const people = useLoaded((abort) => get<Principal[]>("/principals", undefined, abort), [], { everyMs: 20_000 });
  const audit = useLoaded((abort) => get<Audit>("/audit", { entries: 500 }, abort), [], { everyMs: 10_000 });
  const denials = useLoaded((abort) => get<Denial[]>("/denials", undefined, abort), [], { everyMs: 10_000 });
  return (
    <>
      <Heading title={t.common.accessAndAudit} />
      <section class="card">
        <h2>{t.access.you}</h2>
        <dl class="facts">
          <Fact name={t.access.knownAs}>
            <Name text={who?.principal ?? ""} />
          </Fact>
          <Fact name={t.access.may}>{(who?.grants ?? []).map(roleWords).join(t.list) || t.access.nothingYet}</Fact>
          <Fact name={t.access.thisSessionEnds}>
            {who?.expires_ms ? `${moment(who.expires_ms)}${t.list}${inTime(who.expires_ms, nowMs.value)}` : t.access.whenYouLogOut}
          </Fact>
        </dl>
      </section>
      <Part title={t.access.whoMayDoWhat} of={people}>
        {(rows) => (
          <>
            <Table
              label={t.access.peopleAndPrograms}
              columns={[
                { title: t.common.name, cell: (each: Principal) => <Name text={each.name} />, sort: (each) => each.name },
                {
                  title: t.access.roles,
                  cell: (each: Principal) => (
                    <span class="row">
                      {each.grants.map((grant) => (
                        <span class="row" key={`${grant.role} ${grant.scope}`}>
                          {roleWords(grant)}
                          {may(["ADMIN", "MANAGER"], grant.scope) && (
                            <Action
                              label={t.access.revoke}
                              kind="small"
                              title={t.access.revokeRole(roleWords(grant), each.name)}
                              call={() => ({
                                method: "DELETE",
                                path: "/grants",
                                query: { principal: each.name, role: grant.role, scope: grant.scope },
                              })}
                              command={() =>
                                command("access", "revoke", each.name, grant.role.toLowerCase(), grant.scope && "--tenant", grant.scope)
                              }
                              onDone={people.reload}
                            />
                          )}
                        </span>
                      ))}
                    </span>
                  ),
                },
                { title: t.access.tokensTitle, cell: (each: Principal) => each.tokens, sort: (each) => each.tokens, right: true },
              ]}
              rows={rows}
              keyOf={(each) => each.name}
            />
            <LetIn onDone={() => (people.reload(), tokens.reload())} />
          </>
        )}
      </Part>
      <Part title={t.access.tokensTitle} of={tokens}>
        {(rows) => (
          <Table
            label={t.access.tokens}
            columns={[
              { title: t.access.of, cell: (each: Token) => <Name text={each.principal} />, sort: (each) => each.principal },
              { title: t.access.for, cell: (each: Token) => <Name text={each.note} fallback={UNKNOWN} />, minor: true },
              { title: t.access.made, cell: (each: Token) => ago(each.created_ms, nowMs.value), sort: (each) => each.created_ms, right: true },
              {
                title: t.common.ends,
                cell: (each: Token) => (each.expires_ms ? inTime(each.expires_ms, nowMs.value) : t.common.never),
                sort: (each) => each.expires_ms || Infinity,
                right: true,
              },
              { title: t.access.issuedBy, cell: (each: Token) => <Name text={each.issued_by} />, minor: true },
              {
                title: "",
                cell: (each: Token) => (
                  <Action
                    label={t.access.revoke}
                    kind="small"
                    title={t.access.revokeToken(each.principal, each.token_id)}
                    consequences={
                      each.token_id === who?.token_id ? (
                        <p class="note warn">{t.access.itIsOneOfThis}</p>
                      ) : (
                        <p>{t.access.whatWasOpenedWithIt}</p>
                      )
                    }
                    call={() => ({ method: "DELETE", path: `/tokens/${encodeURIComponent(each.token_id)}` })}
                    command={() => command("access", "token", "revoke", each.token_id)}
                    onDone={tokens.reload}
                  />
                ),
              },
            ]}
            rows={rows}
            keyOf={(each) => each.token_id}
          />
        )}
      </Part>
      <Part title={t.access.whoDidWhat} of={audit}>
        {(found) => (
          <Table
            label={t.access.whoChangedWhatLatestFirst}
            columns={[
              { title: t.access.when, cell: (each) => moment(each.at_ms), sort: (each) => each.at_ms },
              { title: t.access.who, cell: (each) => <Name text={each.principal} />, sort: (each) => each.principal },
              { title: t.access.what, cell: (each) => <span class="code">{each.action}</span>, sort: (each) => each.action },
              { title: t.access.on, cell: (each) => <Name text={each.subject} /> },
              { title: t.access.from, cell: (each) => <span class="code dim">{each.peer}</span>, minor: true },
            ]}
            rows={found.entries}
            keyOf={(each) => each.number}
          />
        )}
      </Part>
      <Part title={t.access.refusedLately} of={denials}>
        {(rows) => (
          <Table
            label={t.access.refusedLabel}
            columns={[
              { title: t.access.when, cell: (each: Denial) => moment(each.at_ms), sort: (each) => each.at_ms },
              { title: t.access.who, cell: (each: Denial) => <Name text={each.principal} fallback={t.common.notKnown} /> },
              { title: t.common.reason, cell: (each: Denial) => each.reason },
              { title: t.access.what, cell: (each: Denial) => <Name text={each.message} /> },
              { title: t.access.times, cell: (each: Denial) => each.times, right: true },
            ]}
            rows={rows}
            keyOf={(each) => `${each.at_ms} ${each.principal} ${each.method} ${each.reason}`}
            empty={t.access.nothingWasRefused}
          />
        )}
      </Part>
      <Elsewhere call={{ method: "GET", path: "/principals" }} command={command("access", "ls")} />
    </>
  );
}

const roleWords = (grant: { role: string; scope: string }): string =>
  grant.scope ? t.access.roleOf(inWords(grant.role), grant.scope) : inWords(grant.role);

/** What somebody may not see is left out in one line, not with an alarm. */
function Part<T>(props: { title: string; of: Loaded<T>; children: (value: T) => JSX.Element }): JSX.Element {
  const { error } = props.of;
  return (
    <section class="card">
      <h2>{props.title}</h2>
      {error instanceof Refusal && error.status === 403 ? (
        <Empty>
          {t.access.forOthers(<bdi>{error.message}</bdi>)}
        </Empty>
      ) : (
        <Shown of={props.of} what={t.access.asking}>
          {props.children}
        </Shown>
      )}
    </section>
  );
}

const FIELDS = { principal: "", role: "USER", scope: "", days: "30" };

function LetIn(props: { onDone: () => void }): JSX.Element {
  const form = useSignal(FIELDS);
  const issued = useSignal<IssuedToken | null>(null);
  const error = useSignal<unknown>(null);
  const busy = useSignal(false);
  const { principal, role, scope, days } = form.value;
  const call: Call = {
    method: "POST",
    path: "/tokens",
    body: { principal, grants: [{ role, scope }], ttl_ms: Math.round(Number(days) * DAY_MS) },
  };
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (busy.value) return;
    busy.value = true;
    error.value = null;
    try {
      issued.value = await ask<IssuedToken>(call);
      form.value = FIELDS;
      props.onDone();
    } catch (caught) {
      error.value = caught;
    } finally {
      busy.value = false;
    }
  };
  const set = (field: keyof typeof FIELDS) => (event: Event) =>
    void (form.value = { ...form.value, [field]: valueOf(event) });
  return (
    <details>
      <summary>{t.access.inviteSomebody}</summary>
      <form onSubmit={send}>
        <div class="grid">
          <Field label={t.common.name}>
            <input required value={principal} onInput={set("principal")} />
          </Field>
          <Field label={t.access.role}>
            <select value={role} onChange={set("role")}>
              {["VIEWER", "USER", "MANAGER", "OPERATOR", "ADMIN", "METRICS"].map((each) => (
                <option value={each}>{inWords(each)}</option>
              ))}
            </select>
          </Field>
          <Field label={t.common.tenant}>
            <input value={scope} onInput={set("scope")} placeholder={t.common.wholePool} />
          </Field>
          <Field label={t.access.goodForDays}>
            <input type="number" min="0" step="any" value={days} onInput={set("days")} />
          </Field>
          <button class="primary" aria-disabled={busy.value}>
            {t.access.makeToken}
          </button>
        </div>
      </form>
      <Problem error={error.value} />
      {issued.value && (
        <div class="note good">
          <p>
            {t.access.shownOnce(<Name text={issued.value.issued.principal} />)}
          </p>
          <Copyable label={t.access.token} text={issued.value.token} />
        </div>
      )}
      <Elsewhere
        call={call}
        command={command(
          "access", "token", principal || "NAME", "--role", role.toLowerCase(), scope && "--tenant", scope, "--ttl", `${days}d`,
        )}
      />
    </details>
  );
}
