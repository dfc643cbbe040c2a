import type { JSX } from "preact";
import { Heading } from "../ui/screen";
export function Fleet(): JSX.Element { return <Heading title="Fleet" />; }
