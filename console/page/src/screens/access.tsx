import type { JSX } from "preact";
import { Heading } from "../ui/screen";
export function Access(): JSX.Element { return <Heading title="Access" />; }
