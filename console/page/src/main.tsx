/** The page begins here. */
import { render } from "preact";
import { App } from "./app";
import { keepFocus } from "./live/focus";
import { startTheme } from "./live/theme";
import { noticeCode } from "./screens/login";
import { recognise, tendStatus } from "./live/session";

startTheme();
keepFocus();
const root = document.getElementById("page");
if (root) render(<App />, root);
noticeCode();
void recognise();
tendStatus();
