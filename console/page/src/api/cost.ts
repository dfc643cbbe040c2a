/** What a placement costs in an hour, by the prices of the pool. */
import type { Explanation, RateCard } from "./types";
import { money } from "../ui/words";
import { t } from "../texts";

const GIB = 2 ** 30;

/** As invoices count: for each slice the share and the memory, each at the price of its model. */
export function costOf(explanation: Explanation, rates: RateCard | null): string {
  if (!rates) return t.cost.noPrices;
  if (!explanation.placement.length) return t.cost.onceItsPlaceIsKnown;
  let micro = 0;
  for (const part of explanation.placement) {
    const rate = rateOf(rates, part.device_model);
    if (!rate) return t.cost.noPriceFor(part.device_model);
    micro += (rate.gpu_hour_micro * part.share_milli) / 1000 + (rate.gib_hour_micro * part.memory_bytes) / GIB;
  }
  return t.cost.anHour(money(micro, rates.currency));
}

const rateOf = (rates: RateCard, model: string): RateCard["rates"][number] | undefined =>
  rates.rates.find((rate) => rate.model === model) ??
  rates.rates.find((rate) => rate.model && model.startsWith(`${rate.model}-`)) ??
  rates.rates.find((rate) => rate.model === "" || rate.model === "*");
