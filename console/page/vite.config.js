import { defineConfig } from "vite";

// The page is served by aliquot-console from the folder `static` of its package. While it is written, `npx vite` serves it
// and passes calls on to a console at ALIQUOT_CONSOLE.
export default defineConfig({
  build: {
    outDir: "../aliquot/console/static",
    emptyOutDir: true,
    // Nothing inline: the policy of the page allows no inline script, style or image.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  server: { proxy: { "/api": process.env.ALIQUOT_CONSOLE ?? "http://127.0.0.1:7074" } },
});
