import type { JSX } from "preact";
import { Heading } from "../ui/screen";
export function WhatIf(): JSX.Element { return <Heading title="WhatIf" />; }
