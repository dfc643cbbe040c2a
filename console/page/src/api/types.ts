/** The API's values, by the names of its OpenAPI document. */
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Lease = Schemas["Lease"];
export type Slice = Schemas["Slice"];
export type Explanation = Schemas["Explanation"];
export type Missing = Schemas["Missing"];
export type GpuNode = Schemas["Node"];
export type Device = Schemas["Device"];
export type Status = Schemas["Status"];
export type PoolTotals = Schemas["PoolTotals"];
export type Tenancy = Schemas["Tenancy"];
export type RateCard = Schemas["RateCard-Output"];
export type Identity = Schemas["Identity"];
export type Maintenance = Schemas["Maintenance"];
export type Invoice = Schemas["Invoice"];
export type Token = Schemas["Token"];
export type IssuedToken = Schemas["IssuedToken"];
export type Principal = Schemas["Principal"];
export type Audit = Schemas["Audit"];
export type Denial = Schemas["Denial"];
export type Incident = Schemas["Incident"];
export type Health = Schemas["Health"];
export type Problem = Schemas["Problem"];
export type LoginOffer = Schemas["LoginOffer"];
export type Amount = Schemas["Amount-Output"];
export type Timeline = Schemas["Timeline"];
export type Forecast = Schemas["Forecast"];
export type ForecastSeries = Schemas["ForecastSeries"];
export type ForecastHour = Schemas["ForecastHour"];
export type Plan = Schemas["Plan"];
export type UseReport = Schemas["UseReport"];
export type UseRow = Schemas["UseRow"];

/** A page of a list. */
export interface Page<T> {
  items: T[];
  next_token: string;
  seq: number;
}

/** What a form asks for: only what differs from the defaults. */
export type Asked = Partial<Schemas["Request"]> & { gpu: string };
