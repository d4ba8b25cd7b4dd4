// Builds the project into one file, dist/index.html, which needs nothing else.
//
// A model has written what is in src, and a failed build's log goes back to it: so a build reads no other file than
// the project's own.
import { realpathSync } from "node:fs";
import { isAbsolute, resolve, sep } from "node:path";
import vue from "@vitejs/plugin-vue";

const root = realpathSync(import.meta.dirname);

const ownFilesOnly = {
  name: "own-files-only",
  enforce: "pre",
  load(id) {
    const file = id.replace(/[?#].*$/, "");
    if (isAbsolute(file) && !resolve(file).startsWith(root + sep)) this.error("not a file of this project: " + file);
  },
  transform(code, id) {
    const isStyle = /\.css($|\?)|[?&]type=style/.test(id);
    if (isStyle && /@import|url\(|image-set\(/i.test(code)) this.error("style sheets may not name other files: " + id);
    const isOurs = !id.includes("/node_modules/");
    if (isOurs && code.includes("import.meta.url")) this.error("there are no files to name by import.meta.url: " + id);
  },
};

const inOneFile = {
  name: "in-one-file",
  enforce: "post",
  generateBundle(options, bundle) {
    const page = bundle["index.html"];
    for (const [name, made] of Object.entries(bundle).filter(([, made]) => made !== page)) {
      const at = `[^>]*(?:src|href)="[^"]*${name.replace(/[.]/g, "\\.")}"[^>]*>`;
      const [tag, text] = made.type === "chunk"
        ? [new RegExp(`<script${at}</script>`), `<script type="module">${made.code.replace(/<(?=\/script|!--)/gi, "\\x3C")}</script>`]
        : [new RegExp(`<link${at}`), `<style>${String(made.source).replace(/<(?=\/style)/gi, "\\3C ")}</style>`];
      page.source = page.source.replace(tag, () => text);
      delete bundle[name];
    }
  },
};

export default {
  root,
  base: "./",
  publicDir: false,
  envDir: false,
  envPrefix: "NO_VARIABLE_BEGINS_SO_", // or those that begin with VITE_ would stand in the page
  logLevel: "warn",
  plugins: [ownFilesOnly, vue(), inOneFile],
  worker: { format: "es", plugins: () => [ownFilesOnly] }, // plugins do not apply to workers by themselves
  css: { postcss: {}, modules: false }, // no configuration is looked for, and no `composes: x from "/file"` read
  build: {
    assetsInlineLimit: 1e9,
    cssCodeSplit: false,
    modulePreload: false,
    // one file after the other, so that the same faults are told each time
    rollupOptions: { maxParallelFileOps: 1, output: { inlineDynamicImports: true } },
  },
};
