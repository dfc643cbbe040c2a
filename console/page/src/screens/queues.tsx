import type { JSX } from "preact";
import { Heading } from "../ui/screen";
export function Queues(): JSX.Element { return <Heading title="Queues" />; }
