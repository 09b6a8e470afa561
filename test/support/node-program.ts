/** How a test starts a TypeScript program of ours in a Node process of its own. */

/** Arguments before the program's path: sources by the package's name, types stripped. */
export const nodeArguments: readonly string[] = [
  '--conditions=source',
  ...(process.features.typescript ? [] : ['--experimental-strip-types']),
  '--disable-warning=ExperimentalWarning',
]
