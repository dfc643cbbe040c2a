import type { JSX } from "preact";
import { Heading } from "../ui/screen";
export function Use(): JSX.Element { return <Heading title="Use" />; }
