"use strict";
(() => {
  const report = JSON.parse(document.getElementById("data").textContent).report;
  const main = document.getElementById("main");
  const MAX_JAXPR_ROWS = 5000, FRAME_HEIGHT = 21, MAX_DEPTH = 60;

  // --- small helpers: every text of the report goes through textContent -----------------------

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") element.className = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null) element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null).map(
      (child) => child instanceof Node ? child : document.createTextNode(String(child))));
    return element;
  }
  const number = (n) => n.toLocaleString("en-US");
  const count = (n, one, many) => `${number(n)} ${n === 1 ? one : many || one + "s"}`;
  const seconds = (s) => s ? s.toFixed(2) + " s" : "-";
  const place = (source) => {
    const found = /^(.*?):(\d+)(?::\d+)?( \([^]*\))?$/.exec(source);
    return found ? found[1].split(/[\\/]/).pop() + ":" + found[2] : source;
  };
  function size(bytes) {
    for (const unit of ["B", "kB", "MB"]) {
      if (bytes < 1000) return Number(bytes.toPrecision(3)) + " " + unit;
      bytes /= 1000;
    }
    return Number(bytes.toPrecision(3)) + " GB";
  }
  function percent(part, whole) {
    if (!part || !whole) return "0 %";
    if (part === whole) return "100 %";
    const share = 100 * part / whole;
    return share < 0.5 ? "<1 %" : share > 99.5 ? ">99 %" : Math.round(share) + " %";
  }

  const isShared = (body) => ["SHARED", "ROLLED", "STAGED"].includes(body.structure);
  const keepsCalls = (program) => program.platform === "cpu"
    || program.bodies.some((body) => ["ROLLED", "STAGED"].includes(body.structure));

  // --- summary --------------------------------------------------------------------------------

  function summary(program) {
    const shared = program.bodies.filter(isShared);
    const calls = shared.reduce((sum, body) => sum + body.n_uses, 0);
    const saved = program.n_equations - program.n_compiled;
    const done = program.is_applied;
    const lead = calls === 0 ? "Nothing repeats that would pay as a shared body."
      : keepsCalls(program)
        ? `${count(calls, "call")} ${done ? "became" : "would become"} `
          + `${count(shared.length, "shared body", "shared bodies")}. Predicted: XLA `
          + `${done ? "compiles" : "would compile"} ${number(program.n_compiled)} of `
          + `${count(program.n_equations, "equation")}.`
        : `${number(saved)} of ${number(program.n_equations)} equations are repeats; on `
          + `${program.platform} XLA compiles them all the same.`;
    const card = (value, label) => make("div", {class: "card"}, make("b", {}, value),
                                        make("span", {}, label));
    const s = program.seconds;
    const cards = [
      card(`${number(calls)} \u2192 ${number(shared.length)}`, "calls \u2192 shared bodies"),
      card(percent(saved, program.n_equations), keepsCalls(program)
        ? `of the equations are repeats ${done ? "not" : "that would not be"} compiled again`
        : "of the equations are repeats"),
      card(`${number(program.n_equations)} \u2192 ${number(program.n_compiled)}`,
           "equations before \u2192 after"),
      card(`${number(program.n_bodies_before)} \u2192 ${number(program.n_bodies_after)}`,
           "nested functions before \u2192 after"),
      card(seconds(s.trace_s + s.lower_s + s.compile_s), "trace, lower and compile so far"),
      card(program.platform, `platform, JAX ${program.jax_version}`),
    ];
    return [make("h2", {}, program.name), make("p", {class: "lead"}, lead),
            ...program.notes.map((note) => make("p", {class: "soft"}, note + ".")),
            make("div", {class: "cards"}, ...cards)];
  }

  function timeline(program) {
    const s = program.seconds, phases = [
      ["trace", "trace your code", Math.max(s.trace_s - s.structure_s, 0)],
      ["structure", "jitscope", s.structure_s], ["lower", "lower", s.lower_s],
      ["compile", "compile (XLA)", s.compile_s]];
    const total = phases.reduce((sum, [, , value]) => sum + value, 0);
    const bar = make("div", {class: "bar", role: "img", "aria-label": "seconds of each phase"});
    const key = make("div", {class: "key"});
    for (const [name, label, value] of phases) {
      if (value > 0) {
        const part = make("div", {class: name, title: `${label}: ${seconds(value)}`});
        part.style.width = 100 * value / total + "%";
        bar.append(part);
      }
      key.append(make("span", {}, make("i", {class: name}), `${label} ${seconds(value)}`));
    }
    return [make("h2", {}, "Where the time went"), bar, key];
  }

  function compiled(program) {
    if (!program.compiled) return [];
    const rows = [
      ["cold start", (c) => seconds(c.seconds.trace_s + c.seconds.lower_s + c.seconds.compile_s)],
      ["functions lowered", (c) => number(c.n_functions)],
      ["instructions in the result", (c) => number(c.n_instructions)],
      ["calls kept", (c) => number(c.n_kept_calls)], ["fused kernels", (c) => number(c.n_fusions)],
      ["array copies", (c) => number(c.n_copies)],
      ["temporary memory", (c) => size(c.temporary_bytes)]];
    const versions = [["plain jax.jit", program.plain], ["with jitscope", program.compiled]]
      .filter(([, version]) => version);
    return [make("h2", {}, "What the compiler made of it"), make("table", {},
      make("thead", {}, make("tr", {}, make("th", {}),
        ...versions.map(([label]) => make("th", {class: "number"}, label)))),
      make("tbody", {}, ...rows.map(([label, value]) => make("tr", {}, make("td", {}, label),
        ...versions.map(([, version]) => make("td", {class: "number"}, value(version))))))),
      make("p", {class: "soft"}, "Seconds are one measurement each; on a busy machine one and the "
        + "same compilation varies by half and more.")];
  }

  function forTarget(program) {
    const made = program.for_target;
    if (!made) return [];
    const loops = made.n_loop_products ? ` (${number(made.n_loop_products)} of them plain loops)` : "";
    return [make("h2", {}, `Compiled for ${made.target}`), make("p", {},
      `Cold start ${seconds(made.seconds.trace_s + made.seconds.lower_s + made.seconds.compile_s)}, `
      + `executables: ${number(made.n_executables)}. One run launches matrix products: `
      + `${number(made.n_products)}${loops}, other fused kernels: ${number(made.n_fusions)}, `
      + `others: ${number(made.n_others)}. Memory besides the arguments: ${size(made.peak_bytes)} at `
      + `most, ${size(made.temporary_bytes)} of it temporary in one executable.`)];
  }

  // --- bodies ---------------------------------------------------------------------------------

  const COLUMNS = [
    ["name", "Body", (b) => b.name, (b, p) => `${title(b, distinction(b, p))}, ${place(b.source)}`],
    ["uses", "Uses", (b) => b.n_uses], ["executions", "Executions", (b) => b.n_executions],
    ["equations", "Equations", (b) => b.n_equations],
    ["share", "Share", (b) => b.n_uses * b.n_equations,
     (b, p) => percent(b.n_uses * b.n_equations, p.n_equations)],
    ["structure", "Structure", (b) => b.structure], ["why", "Why", (b) => b.reason]];

  // Whether a name scope holds more than the transformations that a call stands under.
  const isNamed = (scope) => scope.replace(/\b(jvp|transpose|vmap)\b|[()/]/g, "") !== "";

  function title(body, more) {
    const parts = [body.is_backward ? "gradient" : "", more].filter((part) => part);
    return body.name + (parts.length ? ` (${parts.join(", ")})` : "");
  }

  // What tells bodies of one name apart: an operand's type, or the number of the first call.
  function distinction(body, program) {
    const alike = program.bodies.filter((other) => title(other) === title(body));
    if (alike.every((other) => other.operands.length === body.operands.length)) {
      const i = body.operands.findIndex((type, i) => alike.some((other) => other.operands[i] !== type));
      if (i >= 0) return body.operands[i];
    }
    if (alike.every((other) => other.first_call === body.first_call)) return "";
    return `${body.n_uses > 1 ? "from " : ""}call ${body.first_call}`;
  }

  function bodies(program) {
    const state = {column: "share", descending: true, filter: ""};
    const rows = make("tbody"), shown = make("span", {class: "soft", id: "shown"});
    const open = new Set();
    const heads = new Map(COLUMNS.map(([key, label]) => [key, make("th", {scope: "col"},
      make("button", {type: "button", "data-column": key, onclick: () => {
        state.descending = state.column === key ? !state.descending : key !== "name";
        state.column = key;
        fill();
      }}, label))]));

    function fill() {
      const [, , value] = COLUMNS.find(([key]) => key === state.column);
      const wanted = state.filter.toLowerCase();
      const chosen = program.bodies.filter((body) => !wanted
        || [body.name, body.source, body.structure, body.reason].some(
          (text) => text.toLowerCase().includes(wanted)));
      const sign = state.descending ? -1 : 1;
      chosen.sort((a, b) => sign * (typeof value(a) === "number" ? value(a) - value(b)
        : value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
      for (const [key, head] of heads) {
        head.setAttribute("aria-sort", key !== state.column ? "none"
          : state.descending ? "descending" : "ascending");
      }
      shown.textContent = `${number(chosen.length)} of ${count(program.bodies.length, "body", "bodies")}`;
      rows.replaceChildren(...chosen.slice(0, MAX_JAXPR_ROWS).flatMap((body) => row(body)));
    }

    function row(body) {
      const cells = COLUMNS.map(([key, , value, text]) => {
        const content = text ? text(body, program) : value(body);
        const isNumber = typeof value(body) === "number";
        return make("td", {class: isNumber ? "number" : key === "structure" ? body.structure : ""},
                    typeof content === "number" ? number(content) : content);
      });
      const toggle = () => {
        if (open.has(body.digest)) open.delete(body.digest); else open.add(body.digest);
        fill();
        rows.querySelector(`tr[data-digest="${CSS.escape(body.digest)}"]`).focus();
      };
      const isOpen = open.has(body.digest);
      const line = make("tr", {class: "body", tabindex: "0", "data-digest": body.digest,
        "aria-expanded": String(isOpen), onclick: toggle,
        onkeydown: (event) => {
          if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); }
        }}, ...cells);
      return isOpen ? [line, make("tr", {class: "detail"},
        make("td", {colspan: COLUMNS.length}, ...detail(program, body)))] : [line];
    }

    const filter = make("input", {type: "search", id: "filter", placeholder: "Filter",
      "aria-label": "Filter bodies", oninput: () => { state.filter = filter.value; fill(); }});
    fill();
    return [make("h2", {}, "Bodies"),
      make("p", {class: "soft"}, "A body is a computation that is called. SHARED: compiled once, "
        + "and called. ROLLED: compiled once, as the body of a loop. STAGED: compiled on its own, "
        + "and run by the host. NESTED: lowered once; XLA "
        + "copies it to each call. INLINE: dissolved into its caller. "
        + (program.is_applied ? "" : "This program was only looked at, and none of it applied. ")
        + "Click a row for more."),
      make("div", {class: "tools"}, filter, shown),
      make("div", {class: "scroll"}, make("table", {id: "bodies"},
        make("thead", {}, make("tr", {}, ...heads.values())), rows))];
  }

  function detail(program, body) {
    const list = (title, items) => items.length ? [make("h3", {}, title),
      make("ul", {}, ...items.map((item) => make("li", {}, item)))] : [];
    const realised = body.n_realised === null || !isShared(body) ? ""
      : ` In the compiled program ${count(body.n_realised, "call is", "calls are")} kept, which `
        + `spares ${count(Math.max(body.n_realised - 1, 0) * body.n_equations, "equation")}.`;
    const within = !body.n_of_its_name ? ""
      : ` It holds ${count(body.n_of_its_name, "call")} of another ${body.name}.`;
    const parts = [make("p", {}, `${body.structure}: ${body.reason}.${realised}${within}`),
      make("p", {class: "soft"}, `Operands ${size(body.operand_bytes)}, results `
        + `${size(body.result_bytes)} per call; ${count(body.n_heavy, "matrix product, loop or the like",
           "matrix products, loops and the like")}; `
        + `${body.outlined ? "found in the program" : body.is_decorated ? "a shared subroutine"
          : "a nested function"}; `
        + `${body.digest.slice(0, 12)}`)];
    if (body.n_uses > 2 && 2 * body.n_traces > body.n_uses) {
      parts.push(make("p", {class: "miss"}, `Traced ${number(body.n_traces)} times with one result: `
        + (body.why_retraced || "a new function object or static value each time? "
          + "jitscope.shared_subroutine traces it once") + "."));
    }
    const names = new Map(program.bodies.map((other) => [other.digest, other.name]));
    parts.push(...list("Call sites", body.sites.map((site) =>
      `${number(site.n_calls)} \u00d7 ${site.source}${isNamed(site.scope)
        ? ", in " + site.scope : ""}`)));
    parts.push(...list("Also used for", body.covers.map(
      (digest) => `${names.get(digest) || "a smaller variant"} ${digest.slice(0, 12)}`)));
    for (const miss of body.near_misses) {
      const call = miss.first_call && miss.first_call !== body.first_call
        ? `call ${miss.first_call} at ` : "";
      parts.push(make("h3", {}, "Almost shared with ", `${miss.name} (${call}${place(miss.source)})`),
        make("ul", {class: miss.kinds.includes("gradient") ? "" : "miss"},
             ...miss.differences.map((text) => make("li", {}, text))),
        make("p", {}, `To share: ${miss.change}.`));
    }
    if (body.jaxpr) parts.push(make("h3", {}, "The body"), make("pre", {}, body.jaxpr));
    return parts;
  }

  // --- flame graphs ---------------------------------------------------------------------------

  function tree(lines, field) {
    const root = {name: "all equations", value: 0, children: new Map()};
    for (const line of lines) {
      const value = line[field];
      if (!value) continue;
      let node = root;
      node.value += value;
      for (const frame of line.stack.slice(0, MAX_DEPTH)) {
        if (!node.children.has(frame)) {
          node.children.set(frame, {name: frame, value: 0, children: new Map()});
        }
        node = node.children.get(frame);
        node.value += value;
      }
    }
    return root;
  }

  function hue(name) {
    let hash = 0;
    for (const character of name) hash = (hash * 31 + character.codePointAt(0)) >>> 0;
    return `hsl(${20 + hash % 40} ${60 + hash % 25}% ${68 + hash % 12}%)`;
  }

  function flame(root, whole) {
    const box = make("div", {class: "flame"});
    let top = root;
    function draw() {
      let depth = 0;
      const frames = [];
      (function place(node, left, width, level) {
        depth = Math.max(depth, level);
        const label = level || node === root ? node.name : node.name + "  (click: back)";
        const shown = label.replace(/^.*[\\/]/, "");
        const frame = make("button", {class: "frame", type: "button",
          title: `${node.name}\n${number(node.value)} equations, ${percent(node.value, whole)}`,
          onclick: () => { top = node === top ? root : node; draw(); }},
          `${shown}  ${number(node.value)}`);
        frame.style.left = left * 100 + "%";
        frame.style.width = width * 100 + "%";
        frame.style.top = level * FRAME_HEIGHT + "px";
        frame.style.background = hue(node.name);
        frames.push(frame);
        let at = left;
        for (const child of [...node.children.values()].sort((a, b) => b.value - a.value)) {
          const share = width * child.value / node.value;
          if (share > 0.002) place(child, at, share, level + 1);
          at += share;
        }
      })(top, 0, 1, 0);
      box.style.height = (depth + 1) * FRAME_HEIGHT + "px";
      box.replaceChildren(...frames);
    }
    draw();
    return box;
  }

  function flames(program) {
    if (!program.lines.length) return [];
    return [make("h2", {}, "Equations by source line"),
      make("p", {class: "soft"}, "The wider, the more equations. Click a frame to enlarge it."),
      make("h3", {}, `Before: ${number(program.n_equations)} equations`),
      flame(tree(program.lines, "n_before"), program.n_equations),
      make("h3", {}, `After: ${number(program.n_compiled)} equations, shared bodies once`),
      flame(tree(program.lines, "n_after"), program.n_compiled)];
  }

  // --- subroutines, failures, the page ---------------------------------------------------------

  function subroutines() {
    if (!report.subroutines.length) return [];
    const rows = report.subroutines.map((s) => make("tr", {}, make("td", {}, s.name),
      ...[s.n_calls, s.n_traces, s.n_reused].map((n) => make("td", {class: "number"}, number(n))),
      make("td", {class: "number"}, seconds(s.seconds.trace_s)),
      make("td", {class: "number"}, s.n_compiled ? `${number(s.n_compiled)} in `
        + seconds(s.seconds.lower_s + s.seconds.compile_s) : "-"),
      make("td", {}, make("ul", {}, ...s.problems.map((p) => make("li", {class: "miss"}, p)),
        ...s.retraces.map((r) => make("li", {}, `${number(r.n_traces)} \u00d7 ${r.reason}`))))));
    return [make("h2", {}, "Shared subroutines"), make("div", {class: "scroll"},
      make("table", {}, make("thead", {}, make("tr", {}, ...[
        "Subroutine", "Calls while tracing", "Traces", "Reused", "Traced in", "Compiled on its own",
        "Why it was traced again"]
        .map((label) => make("th", {}, label)))), make("tbody", {}, ...rows)))];
  }

  function other() {
    const s = report.other;
    return s.lower_s + s.compile_s ? [make("p", {class: "soft"}, "Anything else, such as plain "
      + `jax.jit functions and single operations: lower ${seconds(s.lower_s)}, compile `
      + `${seconds(s.compile_s)}.`)] : [];
  }

  function show(program) {
    main.replaceChildren(
      ...(program ? [...summary(program), ...timeline(program), ...compiled(program), ...forTarget(program),
                     ...bodies(program), ...flames(program)]
        : [make("p", {class: "lead"}, "No program was traced.")]),
      ...subroutines(), ...other(),
      ...(report.failures.length ? [make("h2", {}, "Left as they were"), make("ul", {},
        ...report.failures.map((failure) => make("li", {}, failure)))] : []));
  }

  const programs = report.programs.slice().sort((a, b) =>
    (b.seconds.trace_s + b.seconds.lower_s + b.seconds.compile_s)
    - (a.seconds.trace_s + a.seconds.lower_s + a.seconds.compile_s));
  const select = document.getElementById("program");
  programs.forEach((program, i) => select.append(make("option", {value: i},
    `${program.name} (${number(program.n_equations)} equations)`)));
  document.getElementById("pick").hidden = programs.length < 2;
  select.addEventListener("change", () => show(programs[Number(select.value)]));
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
  });
  show(programs[0]);
})();
