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
import { ago, inTime, lower, moment, plural, UNKNOWN } from "../ui/words";

const DAY_MS = 86_400_000;

export function Access(): JSX.Element {
  const who = identity.value;
  const tokens = useLoaded((abort) => get<Token[]>("/tokens", undefined, abort), [], { everyMs: 20_000 });
  const people = useLoaded((abort) => get<Principal[]>("/principals", undefined, abort), [], { everyMs: 20_000 });
  const audit = useLoaded((abort) => get<Audit>("/audit", { entries: 500 }, abort), [], { everyMs: 10_000 });
  const denials = useLoaded((abort) => get<Denial[]>("/denials", undefined, abort), [], { everyMs: 10_000 });
  return (
    <>
      <Heading title="Access and audit" />
      <section class="card">
        <h2>You</h2>
        <dl class="facts">
          <Fact name="Known as">
            <Name text={who?.principal ?? ""} />
          </Fact>
          <Fact name="May">{(who?.grants ?? []).map(roleWords).join("; ") || "nothing yet"}</Fact>
          <Fact name="This session ends">{who?.expires_ms ? `${moment(who.expires_ms)}, ${inTime(who.expires_ms, nowMs.value)}` : "when you log out"}</Fact>
        </dl>
      </section>
      <Part title="Who may do what" of={people}>
        {(rows) => (
          <>
            <Table
              label="people and programs"
              columns={[
                { title: "Name", cell: (each: Principal) => <Name text={each.name} />, sort: (each) => each.name },
                {
                  title: "Roles",
                  cell: (each: Principal) => (
                    <span class="row">
                      {each.grants.map((grant) => (
                        <span class="row" key={`${grant.role} ${grant.scope}`}>
                          {roleWords(grant)}
                          {may(["ADMIN", "MANAGER"], grant.scope) && (
                            <Action
                              label="take away"
                              kind="small"
                              title={`Take ${roleWords(grant)} from ${each.name}?`}
                              call={() => ({
                                method: "DELETE",
                                path: "/grants",
                                query: { principal: each.name, role: grant.role, scope: grant.scope },
                              })}
                              command={() =>
                                command("access", "revoke", each.name, lower(grant.role), grant.scope && "--tenant", grant.scope)
                              }
                              onDone={people.reload}
                            />
                          )}
                        </span>
                      ))}
                    </span>
                  ),
                },
                { title: "Tokens", cell: (each: Principal) => each.tokens, sort: (each) => each.tokens, right: true },
              ]}
              rows={rows}
              keyOf={(each) => each.name}
            />
            <LetIn onDone={() => (people.reload(), tokens.reload())} />
          </>
        )}
      </Part>
      <Part title="Tokens" of={tokens}>
        {(rows) => (
          <Table
            label="tokens"
            columns={[
              { title: "Of", cell: (each: Token) => <Name text={each.principal} />, sort: (each) => each.principal },
              { title: "For", cell: (each: Token) => <Name text={each.note} fallback={UNKNOWN} />, minor: true },
              { title: "Made", cell: (each: Token) => ago(each.created_ms, nowMs.value), sort: (each) => each.created_ms, right: true },
              {
                title: "Ends",
                cell: (each: Token) => (each.expires_ms ? inTime(each.expires_ms, nowMs.value) : "never"),
                sort: (each) => each.expires_ms || Infinity,
                right: true,
              },
              { title: "By", cell: (each: Token) => <Name text={each.issued_by} />, minor: true },
              {
                title: "",
                cell: (each: Token) => (
                  <Action
                    label="End"
                    kind="small"
                    title={`End ${each.principal}’s token ${each.token_id}?`}
                    consequences={
                      each.token_id === who?.token_id ? (
                        <p class="note warn">It is the one of this session: you are logged out.</p>
                      ) : (
                        <p>What was opened with it ends within a second. Leases stay.</p>
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
      <Part title="Who did what" of={audit}>
        {(found) => (
          <Table
            label="who changed what, the latest first"
            columns={[
              { title: "When", cell: (each) => moment(each.at_ms), sort: (each) => each.at_ms },
              { title: "Who", cell: (each) => <Name text={each.principal} />, sort: (each) => each.principal },
              { title: "What", cell: (each) => each.action, sort: (each) => each.action },
              { title: "On", cell: (each) => <Name text={each.subject} /> },
              { title: "From", cell: (each) => <span class="code dim">{each.peer}</span>, minor: true },
            ]}
            rows={found.entries}
            keyOf={(each) => each.number}
          />
        )}
      </Part>
      <Part title="Refused lately" of={denials}>
        {(rows) => (
          <Table
            label="what was refused lately"
            columns={[
              { title: "When", cell: (each: Denial) => moment(each.at_ms), sort: (each) => each.at_ms },
              { title: "Who", cell: (each: Denial) => <Name text={each.principal} fallback="not known" /> },
              { title: "Reason", cell: (each: Denial) => each.reason },
              { title: "What", cell: (each: Denial) => <Name text={each.message} /> },
              { title: "Times", cell: (each: Denial) => each.times, right: true },
            ]}
            rows={rows}
            keyOf={(each) => `${each.at_ms} ${each.principal} ${each.method} ${each.reason}`}
            empty="Nothing was refused."
          />
        )}
      </Part>
      <Elsewhere call={{ method: "GET", path: "/principals" }} command={command("access", "ls")} />
    </>
  );
}

const roleWords = (grant: { role: string; scope: string }): string =>
  `${lower(grant.role)}${grant.scope ? ` of ${grant.scope}` : ""}`;

/** What somebody may not see is left out in one line, not with an alarm. */
function Part<T>(props: { title: string; of: Loaded<T>; children: (value: T) => JSX.Element }): JSX.Element {
  const { error } = props.of;
  return (
    <section class="card">
      <h2>{props.title}</h2>
      {error instanceof Refusal && error.status === 403 ? (
        <Empty>
          This is for others: <bdi>{error.message}</bdi>.
        </Empty>
      ) : (
        <Shown of={props.of} what="asking">
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
      <summary>let somebody in</summary>
      <form onSubmit={send}>
        <div class="grid">
          <Field label="Name">
            <input required value={principal} onInput={set("principal")} />
          </Field>
          <Field label="Role">
            <select value={role} onChange={set("role")}>
              {["VIEWER", "USER", "MANAGER", "OPERATOR", "ADMIN", "METRICS"].map((each) => (
                <option value={each}>{each.toLowerCase()}</option>
              ))}
            </select>
          </Field>
          <Field label="Tenant">
            <input value={scope} onInput={set("scope")} placeholder="the whole pool" />
          </Field>
          <Field label="Good for, days">
            <input type="number" min="0" step="any" value={days} onInput={set("days")} />
          </Field>
          <button class="primary" aria-disabled={busy.value}>
            Make a token
          </button>
        </div>
      </form>
      <Problem error={error.value} />
      {issued.value && (
        <div class="note good">
          <p>
            It is shown once. Good for {plural(1, "person")}: <Name text={issued.value.issued.principal} />.
          </p>
          <Copyable label="token" text={issued.value.token} />
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
