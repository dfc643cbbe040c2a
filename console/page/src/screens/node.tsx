import type { JSX } from "preact";
import { Heading } from "../ui/screen";
export function Node(): JSX.Element { return <Heading title="Node" />; }
