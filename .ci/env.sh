# Source this: it puts a Node that is new enough first in PATH, and does nothing where there is one already.
# The fallback is the exact build locked in .ci/node, checked by its integrity hash.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if ! node -e 'const [a,b]=process.versions.node.split(".").map(Number);process.exit(a>22||(a===22&&b>=13)?0:1)' 2>/dev/null; then
  [ -x "$root/.ci/node/node_modules/.bin/node" ] || npm ci --prefix "$root/.ci/node" >&2
  export PATH="$root/.ci/node/node_modules/.bin:$PATH"
fi
