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

export interface Screen {
  path: string;
  title: string;
  Show: () => JSX.Element;
  /** Reached from another screen, not from the list. */
  hidden?: boolean;
  parent?: string;
}

export const SCREENS: readonly Screen[] = [
  { path: "/", title: "Overview", Show: Overview },
  { path: "/ask", title: "Would it run now?", Show: Ask },
  { path: "/leases", title: "My leases", Show: Leases },
  { path: "/lease", title: "Lease", Show: Lease, hidden: true, parent: "/leases" },
  { path: "/fleet", title: "Fleet", Show: Fleet },
  { path: "/node", title: "Node", Show: Node, hidden: true, parent: "/fleet" },
  { path: "/queues", title: "Queues and tenants", Show: Queues },
  { path: "/incidents", title: "Health and incidents", Show: Incidents },
  { path: "/use", title: "Use and money", Show: Use },
  { path: "/calendar", title: "Calendar of demand", Show: Calendar },
  { path: "/maintenance", title: "Maintenance", Show: Maintenance },
  { path: "/access", title: "Access and audit", Show: Access },
  { path: "/what-if", title: "What if", Show: WhatIf },
];

const ABSENT: Screen = { path: "", title: "Not found", Show: NotFound };
const FIRST = SCREENS[0] ?? ABSENT;

/** `/login` is where one-time codes arrive: who is signed in sees the first screen there. */
export const screenAt = (path: string): Screen =>
  path === "/login" ? FIRST : (SCREENS.find((each) => each.path === path) ?? ABSENT);

function NotFound(): JSX.Element {
  return (
    <>
      <Heading title="Nothing is at this address" />
      <Empty>
        <Link to="/">Overview</Link>
      </Empty>
    </>
  );
}
