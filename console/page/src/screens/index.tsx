/** All screens, in the order of their use. */
import type { JSX } from "preact";
import { Access } from "./access";
import { Ask } from "./ask";
import { Calendar } from "./calendar";
import { Fleet } from "./fleet";
import { Incidents } from "./incidents";
import { Lease } from "./lease";
import { Leases } from "./leases";
import { Maintenance } from "./maintenance";
import { Node } from "./node";
import { Overview } from "./overview";
import { Queues } from "./queues";
import { Use } from "./use";
import { WhatIf } from "./whatif";
import { Empty } from "../ui/basics";
import { Heading } from "../ui/screen";
import { Link } from "../ui/router";
import { t } from "../texts";

export interface Screen {
  path: string;
  title: string;
  Show: () => JSX.Element;
  /** Reached from another screen, not from the list. */
  hidden?: boolean;
  parent?: string;
}

export const SCREENS: readonly Screen[] = [
  { path: "/", title: t.common.overview, Show: Overview },
  { path: "/ask", title: t.common.wouldItRunNow, Show: Ask },
  { path: "/leases", title: t.common.myLeases, Show: Leases },
  { path: "/lease", title: t.common.lease, Show: Lease, hidden: true, parent: "/leases" },
  { path: "/fleet", title: t.common.fleet, Show: Fleet },
  { path: "/node", title: t.common.node, Show: Node, hidden: true, parent: "/fleet" },
  { path: "/queues", title: t.common.queuesAndTenants, Show: Queues },
  { path: "/incidents", title: t.common.healthAndIncidents, Show: Incidents },
  { path: "/use", title: t.common.useAndMoney, Show: Use },
  { path: "/calendar", title: t.common.calendarOfDemand, Show: Calendar },
  { path: "/maintenance", title: t.common.maintenance, Show: Maintenance },
  { path: "/access", title: t.common.accessAndAudit, Show: Access },
  { path: "/what-if", title: t.common.whatIf, Show: WhatIf },
];

const ABSENT: Screen = { path: "", title: t.index.notFound, Show: NotFound };
const FIRST = SCREENS[0] ?? ABSENT;

/** `/login` is where one-time codes arrive: who is signed in sees the first screen there. */
export const screenAt = (path: string): Screen =>
  path === "/login" ? FIRST : (SCREENS.find((each) => each.path === path) ?? ABSENT);

function NotFound(): JSX.Element {
  return (
    <>
      <Heading title={t.index.nothingIsAtThisAddress} />
      <Empty>
        <Link to="/">{t.common.overview}</Link>
      </Empty>
    </>
  );
}
