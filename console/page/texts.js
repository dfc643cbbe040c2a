/**
 * What the page says is in src/texts, in each language: this finds texts that stand elsewhere. `node texts.js`, or with names of files.
 *
 * A text is what is written between tags or in an attribute that people read, however it gets there, and any string that reads like
 * prose. Names of the product, of commands and of classes are none.
 */
import { readFileSync, readdirSync } from "node:fs";
import ts from "typescript";

const READ = new Set(["title", "label", "aria-label", "placeholder", "hint", "what", "empty", "fallback", "text", "detail", "why"]);
const UNREAD = new Set(["class", "viewBox", "sandbox", "rel"]);
/** What they write is for shells and other programs. */
const FOR_PROGRAMS = ["api/commands.ts", "api/yaml.ts", "api/schema.d.ts", "texts/"];
const PROGRAMS = /aliquot|curl/g;

const has = (text) => /\p{L}{2}/u.test(text.replaceAll(PROGRAMS, ""));
/** Two words beside each other, but no font, such as `11px system-ui`. */
const prose = (text) => /\p{L}{2,} \p{Ll}{2,}/u.test(text) && !/\dpx /.test(text);

/** Where a string is part of what stands between tags or in such an attribute: conditions, alternatives and templates lead there. */
function isRead(node) {
  for (let at = node, up = node.parent; up; at = up, up = up.parent) {
    if (ts.isJsxAttribute(up)) return READ.has(up.name.getText());
    if (ts.isPropertyAssignment(up)) return READ.has(up.name.getText());
    if (ts.isJsxExpression(up)) {
      if (!ts.isJsxAttribute(up.parent)) return true;
    } else if (ts.isConditionalExpression(up)) {
      if (up.condition === at) return false;
    } else if (ts.isBinaryExpression(up)) {
      const joins = ["||", "??", "&&", "+"].includes(up.operatorToken.getText());
      if (!joins || (up.operatorToken.getText() === "&&" && up.left === at)) return false;
    } else if (!ts.isParenthesizedExpression(up) && !ts.isTemplateSpan(up) && !ts.isTemplateExpression(up)) return false;
  }
  return false;
}

const isUnread = (node) => {
  const attribute = ts.findAncestor(node, ts.isJsxAttribute);
  return attribute !== undefined && UNREAD.has(attribute.name.getText());
};

function textsOf(file, source) {
  const tree = ts.createSourceFile(file, source, ts.ScriptTarget.Latest, true);
  const found = [];
  const visit = (node) => {
    const between = ts.isJsxText(node) && has(node.text) && node.parent.openingElement?.tagName.getText() !== "code";
    const string = ts.isStringLiteralLike(node) || [ts.SyntaxKind.TemplateHead, ts.SyntaxKind.TemplateMiddle, ts.SyntaxKind.TemplateTail].includes(node.kind);
    const read = string && has(node.text) && !isUnread(node) && (prose(node.text) || isRead(node));
    if (between || read) {
      const line = tree.getLineAndCharacterOfPosition(node.getStart()).line + 1;
      found.push(`${file}:${line}: ${JSON.stringify(node.text.trim())} belongs into src/texts`);
    }
    ts.forEachChild(node, visit);
  };
  visit(tree);
  return found;
}

const named = process.argv.slice(2);
const all = readdirSync("src", { recursive: true })
  .filter((file) => /\.tsx?$/.test(file) && !FOR_PROGRAMS.some((start) => file.startsWith(start)))
  .map((file) => `src/${file}`);
const found = (named.length ? named : all).flatMap((file) => textsOf(file, readFileSync(file, "utf8")));
if (found.length) {
  console.error(found.join("\n"));
  process.exit(1);
}
