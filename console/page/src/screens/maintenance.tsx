import type { JSX } from "preact";
import { Heading } from "../ui/screen";
export function Maintenance(): JSX.Element { return <Heading title="Maintenance" />; }
