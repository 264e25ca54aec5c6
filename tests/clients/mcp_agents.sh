#!/usr/bin/env bash
# The MCP inspector's command line, Codex CLI and Claude Code against `sala-chat mcp` and against `/mcp` of
# `sala-chat serve`, with the built-in model and homes of their own. Codex also answers a question through the server.
#
#   npm install @modelcontextprotocol/inspector @openai/codex @anthropic-ai/claude-code
#   tests/clients/mcp_agents.sh node_modules/.bin target/debug/sala-chat
set -euo pipefail
bin=$(realpath "$1")
program=$(realpath "$2")
home=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$home"' EXIT
mkdir "$home/work" "$home/codex"
cd "$home/work"
printf 'The rent is 900 dollars a month.\n' > lease.txt
export HOME=$home SALA_CHAT_DATA_DIR=$home/data SALA_CHAT_MCP_ROOTS=$home/work
"$program" --demo --device cpu serve --listen 127.0.0.1:8181 > "$home/serve.log" 2>&1 &
server=$!
until curl -sf http://127.0.0.1:8181/v1/models > "$home/models" || ! kill -0 "$server"; do sleep 0.2; done

inspect=("$bin/mcp-inspector" --cli http://127.0.0.1:8181/mcp --transport http)
"${inspect[@]}" --method tools/list | grep -q '"find_quote"'
"${inspect[@]}" --method tools/call --tool-name add_document --tool-arg path=lease.txt | grep -q '"isError": false'
"${inspect[@]}" --method resources/list | grep -q 'sala://document/lease'
"${inspect[@]}" --method tools/call --tool-name ask --tool-arg 'documents=["lease.txt"]' \
    --tool-arg 'question=How high is the rent?' | grep -q '900'
echo "inspector: ok"

export DISABLE_AUTOUPDATER=1 CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
"$bin/claude" mcp add sala -- "$program" --demo --device cpu mcp > "$home/claude.log"
"$bin/claude" mcp add --transport http sala-http http://127.0.0.1:8181/mcp >> "$home/claude.log"
[ "$("$bin/claude" mcp list | grep -c 'Connected')" = 2 ]
echo "Claude Code: ok"

export CODEX_HOME=$home/codex
cat > "$CODEX_HOME/config.toml" <<END
model = "demo"
model_provider = "sala"
[model_providers.sala]
name = "sala-chat"
base_url = "http://127.0.0.1:8181/v1"
wire_api = "responses"
[mcp_servers.sala]
command = "$program"
args = ["--demo", "--device", "cpu", "mcp"]
[mcp_servers.sala-http]
url = "http://127.0.0.1:8181/mcp"
END
RUST_LOG=rmcp=info "$bin/codex" exec --json --skip-git-repo-check -s read-only "How high is the rent?" \
    < /dev/null > "$home/codex.log" 2>&1
[ "$(grep -c 'Service initialized as client' "$home/codex.log")" = 2 ]
grep -q '"agent_message"' "$home/codex.log"
echo "Codex CLI: ok"
