/** *Would it run now?*: says while one types where a request would go, or what is missing; then asks for it. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { ask, newKey, Refusal, type Call } from "../api/client";
import { asAlloc, asExplain, asPython, asRun, besideForm, curl } from "../api/commands";
import { compose, parse, type Amounts } from "../api/grammar";
import { asked as askedBy, fields, formAddress, isNumber, labelOf } from "../api/request";
import type { Asked, Explanation, Lease, Status, Tenancy } from "../api/types";
import { get } from "../api/client";
import { nowMs } from "../live/clock";
import { useLoaded } from "../live/loading";
import { secrets } from "../live/secrets";
import { status } from "../live/session";
import { Copyable, Elsewhere, Field, Name, Problem, valueOf } from "../ui/basics";
import { Heading } from "../ui/screen";
import { go, leaseAddress, Link, nodeAddress, param, setParams } from "../ui/router";
import { bytes, inTime, inWords, moment, share, shortId } from "../ui/words";
import { asYaml } from "../api/yaml";
import { costOf } from "../api/cost";
import { Free } from "./free";
import { t } from "../texts";

const TYPING_MS = 180;

export function Ask(): JSX.Element {
  const gpu = param("gpu", "0.25,8Gi");
  const asked = askedOf();
  const key = JSON.stringify(asked);
  const answer = useExplained(asked, key);
  const tenancy = useLoaded((abort) => get<Tenancy>("/tenancy", undefined, abort), [], { everyMs: 60_000 });
  const pool = status.value;
  return (
    <>
      <Heading title={t.common.wouldItRunNow} />
      <div class="columns">
        <section aria-label={t.ask.wants}>
          <Form gpu={gpu} pool={pool} tenancy={tenancy.value} />
        </section>
        <section aria-label={t.ask.answer}>
          <Answer asked={asked} answer={answer} tenancy={tenancy.value} />
        </section>
      </div>
      <Free pool={pool} onChoose={(model) => setParams({ gpu: compose({ ...parse(gpu), models: model }) })} />
      <HowToUse asked={asked} />
    </>
  );
}

/** The request in the page's address. */
const askedOf = (): Asked => askedBy(param("gpu", "0.25,8Gi").trim(), param);

/** How inputs of the form differ from plain ones. */
const INPUTS: Record<string, Record<string, unknown>> = {
  tenant: { list: "tenants" },
  queue: { list: "queues" },
  gang_size: { min: 1, placeholder: "1" },
  priority: { min: -1000, max: 1000, placeholder: "0" },
  time_limit_s: { min: 1, placeholder: t.common.never },
  name: { maxLength: 128 },
};
const IN_FORM = fields.filter((field) => labelOf(field));

interface Explained {
  value: Explanation | undefined;
  error: unknown;
  /** The answer is to an earlier text. */
  old: boolean;
}

function useExplained(asked: Asked, key: string): Explained {
  const state = useSignal<{ key: string; value: Explanation | undefined; error: unknown }>({
    key: "",
    value: undefined,
    error: null,
  });
  const round = useSignal(0);
  useEffect(() => {
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      if (!asked.gpu) return;
      try {
        const value = await ask<Explanation>({ method: "POST", path: "/leases:explain", body: asked }, abort.signal);
        state.value = { key, value, error: null };
      } catch (error) {
        if (abort.signal.aborted) return;
        // While no answer comes, what was said last stays, and with it the key of a wish that may be on its way.
        const before = state.peek();
        const lost = error instanceof Refusal && (error.status === 0 || error.status >= 500);
        state.value = { key, value: lost && before.key === key ? before.value : undefined, error };
      }
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [key, round.value]);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || round.value++, 5000);
    return () => clearInterval(timer);
  }, []);
  const { value, error } = state.value;
  return { value, error, old: state.value.key !== key };
}

function Form(props: { gpu: string; pool: Status | undefined; tenancy: Tenancy | undefined }): JSX.Element {
  const parsed = useMemo(() => parse(props.gpu), [props.gpu]);
  const beside = besideForm(askedOf());
  const models = [...new Set((props.pool?.pools ?? []).map((each) => each.model))].sort();
  const change = (changed: Partial<Amounts>): void => setParams({ gpu: compose({ ...parsed, ...changed }) });
  const input = (name: string, more: Record<string, unknown> = {}): JSX.Element => (
    <input value={param(name)} onInput={(event) => setParams({ [name]: valueOf(event) })} {...more} />
  );
  const queues = props.tenancy?.queues.map((each) => each.spec.name) ?? [];
  const tenants = props.tenancy?.tenants.map((each) => each.spec.name) ?? [];
  return (
    <form class="card" onSubmit={(event) => event.preventDefault()}>
      <Field label={t.ask.whatYouWant} hint={t.ask.shareOfDeviceModelsMemory}>
        <input
          class="big"
          spellcheck={false}
          autocomplete="off"
          value={props.gpu}
          onInput={(event) => setParams({ gpu: valueOf(event) })}
        />
      </Field>
      {!parsed.odd && (
        <div class="grid">
          <Field label={t.ask.shareOfDevice}>
            <input
              type="number"
              min="0.001"
              max="1"
              step="0.05"
              value={parsed.share}
              onInput={(event) => change({ share: valueOf(event) })}
            />
          </Field>
          <Field label={t.ask.memoryGib}>
            <input
              type="number"
              min="0"
              step="1"
              placeholder={t.ask.goesWithShare}
              value={parsed.memoryGi}
              onInput={(event) => change({ memoryGi: valueOf(event) })}
            />
          </Field>
          <Field label={t.ask.devicesOnOneNode}>
            <input
              type="number"
              min="1"
              max="64"
              value={parsed.count}
              onInput={(event) => change({ count: valueOf(event) })}
            />
          </Field>
          <Field label={t.common.model}>
            <select value={parsed.models} onChange={(event) => change({ models: valueOf(event) })}>
              <option value="">{t.ask.any}</option>
              {models.map((model) => (
                <option value={model}>{model}</option>
              ))}
              {parsed.models && !models.includes(parsed.models) && <option value={parsed.models}>{parsed.models}</option>}
            </select>
          </Field>
        </div>
      )}
      <details open={fields.some((field) => param(field.name))}>
        <summary>{t.ask.more}</summary>
        <div class="grid">
          {IN_FORM.filter((field) => field.kind !== "flag").map((field) => (
            <Field label={labelOf(field) ?? ""}>
              {field.kind === "tier" ? (
                <select value={param(field.name)} onChange={(event) => setParams({ [field.name]: valueOf(event) })}>
                  <option value="">{t.ask.anything}</option>
                  {["WATCHDOG", "PRELOAD", "MPS", "DRIVER", "MIG"].map((tier) => (
                    <option value={tier}>{inWords(tier)}</option>
                  ))}
                </select>
              ) : (
                input(field.name, { ...(isNumber(field) && { type: "number" }), ...INPUTS[field.name] })
              )}
            </Field>
          ))}
          {IN_FORM.filter((field) => field.kind === "flag").map((field) => (
            <label class="check">
              <input
                type="checkbox"
                checked={param(field.name) !== ""}
                onChange={(event) => setParams({ [field.name]: event.currentTarget.checked ? "yes" : "" })}
              />
              {labelOf(field)}
            </label>
          ))}
        </div>
        {beside && (
          <p class="dim">
            {t.ask.alsoAsked} <code>{beside}</code>
          </p>
        )}
        <datalist id="tenants">
          {tenants.map((each) => (
            <option value={each} />
          ))}
        </datalist>
        <datalist id="queues">
          {queues.map((each) => (
            <option value={each} />
          ))}
        </datalist>
      </details>
    </form>
  );
}

function Answer(props: { asked: Asked; answer: Explained; tenancy: Tenancy | undefined }): JSX.Element {
  const { value, error, old } = props.answer;
  const kind = error ? "bad" : !value ? "none" : value.fits_now ? "good" : value.impossible ? "bad" : "wait";
  const word = error
    ? t.ask.thisCantBeAsked
    : !value
      ? "…"
      : value.fits_now
        ? t.ask.yesNow
        : value.impossible
          ? t.ask.neverInThisPoolAs
          : t.ask.notNowItWouldWait;
  const mark = { good: "✓", bad: "✕", wait: "◔", none: "…" }[kind];
  return (
    <div class={`card answer ${kind}${old ? " old" : ""}`}>
      <p class="verdict" role="status" aria-live="polite">
        <span aria-hidden="true">{mark}</span> {word}
      </p>
      {error !== null && error !== undefined && <Problem error={error} />}
      {value && <Reasons value={value} asked={props.asked} tenancy={props.tenancy} />}
      {value && !value.impossible && <AskForIt asked={props.asked} fitsNow={value.fits_now} />}
    </div>
  );
}

function Reasons(props: { value: Explanation; asked: Asked; tenancy: Tenancy | undefined }): JSX.Element {
  const { value } = props;
  const cost = costOf(value, props.tenancy?.rates ?? null);
  return (
    <>
      {!value.fits_now && (
        <p>
          <bdi>{value.summary}</bdi>
        </p>
      )}
      {value.placement.length > 0 && (
        <ul class="plain">
          {value.placement.map((part, at) => (
            <li key={`${part.device_uuid} ${at}`}>
              <Link to={nodeAddress(part.node_id)}>
                <Name text={part.node_name} />
              </Link>{" "}
              {t.ask.where(
                part.device_model,
                <strong>{share(part.share_milli)}</strong>,
                <strong>{bytes(part.memory_bytes)}</strong>,
              )}
              <span class="dim code"> {shortId(part.device_uuid)}</span>
            </li>
          ))}
        </ul>
      )}
      {value.placement_note && <p class="dim">{value.placement_note}</p>}
      {value.instead && <Instead request={value.instead as unknown as Asked} />}
      {value.missing.length > 0 && (
        <>
          <h3>{t.ask.smallestChange}</h3>
          <ul class="plain changes">
            {value.missing.map((each) => (
              <li>
                <strong>
                  <bdi>{each.smallest_change || t.ask.noneHelps}</bdi>
                </strong>
                <span class="dim">
                  {" "}
                  – {each.device_class}: <bdi>{each.detail}</bdi>
                </span>
              </li>
            ))}
          </ul>
        </>
      )}
      <dl class="facts">
        {!value.fits_now && !value.impossible && (
          <div class="fact">
            <dt>{t.common.expectedStart}</dt>
            <dd>
              {value.expected_start_ms
                ? t.ask.startsAt(inTime(value.expected_start_ms, nowMs.value), moment(value.expected_start_ms))
                : value.start_unknown || t.common.notKnown}
            </dd>
          </div>
        )}
        {value.queue_position > 0 && (
          <div class="fact">
            <dt>{t.common.placeInLine}</dt>
            <dd>
              {t.ask.placeOf(value.queue_position, value.queue_length)}
            </dd>
          </div>
        )}
        <div class="fact">
          <dt>{t.common.cost}</dt>
          <dd>{cost}</dd>
        </div>
        {value.would_preempt.length > 0 && (
          <div class="fact">
            <dt>{t.ask.wouldTakeBack}</dt>
            <dd>{t.ask.ofLowerPriority(t.counts.leases(value.would_preempt.length))}</dd>
          </div>
        )}
      </dl>
      {value.notes.map((note) => (
        <p class="dim">
          <bdi>{note}</bdi>
        </p>
      ))}
    </>
  );
}

/** The request with the smallest change, one click away. `of`: the lease that waits for what was asked for at first. */
export function Instead(props: { request: Asked; of?: string }): JSX.Element {
  const of = props.of ?? param("instead_of");
  return (
    <div class="note good row between">
      <span>
        {t.ask.wouldStartNow} <code>{asAlloc(props.request)}</code>
      </span>
      <Link to={formAddress(props.request, of ? { instead_of: of } : {})} class="button primary">
        {t.ask.askForThisInstead}
      </Link>
    </div>
  );
}

/** Withdraws what waits, if it still does: whether it did. Nothing that has got its devices meanwhile is taken back. */
async function withdraw(id: string, by: string): Promise<boolean> {
  const path = `/leases/${encodeURIComponent(id)}`;
  try {
    const before = await get<Lease>(path);
    if (before.state !== "QUEUED") return before.state === "ENDED";
    await ask({ method: "POST", path: `${path}:release`, body: { reason: t.ask.replacedBy(by) }, ifSeq: before.seq });
    return true;
  } catch {
    return false;
  }
}

function AskForIt(props: { asked: Asked; fitsNow: boolean }): JSX.Element {
  const busy = useSignal(false);
  const error = useSignal<unknown>(null);
  const of = param("instead_of");
  // One key for one wish: a double click, or a try after a lost answer, asks once.
  const key = useSignal(newKey());
  const body = { request: { ...props.asked, detached: true }, until: "QUEUED", wait_s: 0 };
  const call: Call = { method: "POST", path: "/leases", body, key: key.value };
  const send = async (): Promise<void> => {
    if (busy.value) return;
    busy.value = true;
    error.value = null;
    try {
      const lease = await ask<Lease & { secret: string }>(call);
      key.value = newKey();
      secrets.set(lease.lease_id, lease.secret);
      const replaced = !!of && lease.state !== "QUEUED" && (await withdraw(of, lease.lease_id));
      const also = of ? `&${replaced ? "replaced" : "beside"}=${encodeURIComponent(of)}` : "";
      go(leaseAddress(lease.lease_id) + also);
    } catch (caught) {
      error.value = caught;
    } finally {
      busy.value = false;
    }
  };
  return (
    <>
      <Problem error={error.value} />
      <div class="row">
        <button type="button" class="primary" aria-disabled={busy.value} onClick={send}>
          {busy.value ? t.ask.askingForIt : props.fitsNow ? t.ask.askForIt : t.ask.askForItAndWait}
        </button>
        <span class="dim">
          {props.asked.time_limit_s ? t.ask.standsForItsTime : t.ask.stands}{" "}
          {of && t.ask.thenWithdrawn(<Link to={leaseAddress(of)}>{shortId(of)}</Link>)}
        </span>
      </div>
      <Elsewhere call={{ ...call, key: "any-word-of-yours" }} command={asAlloc(props.asked)} />
    </>
  );
}

function HowToUse(props: { asked: Asked }): JSX.Element {
  const kind = useSignal("run");
  const texts: Record<string, [string, string]> = {
    run: [t.ask.asRun, asRun(props.asked)],
    python: ["Python", asPython(props.asked)],
    yaml: [t.ask.inKubernetes, asYaml(props.asked)],
    why: [t.ask.askOnly, asExplain(props.asked)],
    curl: ["curl", curl({ method: "POST", path: "/leases:explain", body: props.asked })],
  };
  const [label, text] = texts[kind.value] ?? ["", ""];
  return (
    <section class="card">
      <h2>{t.common.howToUseIt}</h2>
      <div class="tabs" role="group" aria-label={t.ask.howToUseGroup}>
        {Object.entries(texts).map(([name, [title]]) => (
          <button type="button" aria-pressed={kind.value === name} onClick={() => (kind.value = name)}>
            {title}
          </button>
        ))}
      </div>
      <Copyable label={label} text={text} />
    </section>
  );
}
