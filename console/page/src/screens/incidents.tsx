import type { JSX } from "preact";
import { Heading } from "../ui/screen";
export function Incidents(): JSX.Element { return <Heading title="Incidents" />; }
