/** Small helpers for plain pages. */

export function byId<T extends Element>(id: string, type: abstract new (...args: never[]) => T): T {
  const found = document.getElementById(id)
  if (!(found instanceof type)) throw new Error(`The page has no ${id}`)
  return found
}

/** An element with attributes and children; text is text, never markup. */
export function element<Name extends keyof HTMLElementTagNameMap>(
  name: Name,
  attributes: Readonly<Record<string, string>>,
  ...children: readonly (Node | string)[]
): HTMLElementTagNameMap[Name] {
  const made = document.createElement(name)
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value)
  made.append(...children)
  return made
}

/** One of the drawings that index.html holds. Words stand beside it, so nobody has to hear of it. */
export function icon(name: string): SVGSVGElement {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg')
  const use = document.createElementNS('http://www.w3.org/2000/svg', 'use')
  use.setAttribute('href', `#i-${name}`)
  svg.setAttribute('class', 'icon')
  svg.setAttribute('aria-hidden', 'true')
  svg.append(use)
  return svg
}

/** Changes text only where it differs: a screen reader says again what is set again. */
export function setText(node: Element, text: string): void {
  if (node.textContent !== text) node.textContent = text
}

/** Runs one at a time; calls during a run come to one more run after it. */
export function coalesced(run: () => Promise<void>): () => Promise<void> {
  let running: Promise<void> | undefined
  let next: Promise<void> | undefined
  const begin = (): Promise<void> => {
    running = run().finally(() => (running = undefined))
    return running
  }
  return () => {
    if (!running) return begin()
    next ??= running.then(
      () => ((next = undefined), begin()),
      () => ((next = undefined), begin()),
    )
    return next
  }
}
