#!/usr/bin/env bash
# Packs a release archive and tries it where nothing else is: unpacked in an empty directory, without variables, it must
# say its version, answer from the sample document, and bring its manual page and completions.
#
#   release/archive.sh [FOLDER]     # builds, then writes FOLDER/sala-chat-VERSION-TARGET.tar.gz and its .sha256
#   BINARY=target/debug/sala-chat release/archive.sh /tmp/out      # of a program that is built already
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-target/archive}
if [ -z "${BINARY:-}" ]; then
    cargo build --release --locked --bin sala-chat
    BINARY=target/release/sala-chat
fi
version=$("$BINARY" --version | cut -d' ' -f2)
target=$(rustc -vV | sed -n 's/^host: //p')
name=sala-chat-$version-$target
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

top=$work/$name
mkdir -p "$top/man/man1" "$top/completions" "$out"
install -m 755 "$BINARY" "$top/sala-chat"
strip "$top/sala-chat" 2>/dev/null || echo "not stripped: no strip here" >&2
for text in README.md CHANGELOG.md SECURITY.md LICENSE; do
    [ -f "$text" ] && install -m 644 "$text" "$top/"
done
"$BINARY" manual >"$top/man/man1/sala-chat.1"
"$BINARY" completions bash >"$top/completions/sala-chat.bash"
"$BINARY" completions zsh >"$top/completions/_sala-chat"
"$BINARY" completions fish >"$top/completions/sala-chat.fish"
# The same files in the same order with the same times make the same archive.
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime='2000-01-01 00:00Z' -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
(cd "$out" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")

clean=$work/clean
mkdir "$clean"
(cd "$out" && sha256sum -c --quiet "$name.tar.gz.sha256")
tar -C "$clean" -xzf "$out/$name.tar.gz"
try() { (cd "$clean/$name" && env -i HOME="$clean" PATH=/usr/bin:/bin LANG=C.UTF-8 "$@"); }
try ./sala-chat --version
answer=$(try ./sala-chat --device cpu --no-save -p "Who built the lighthouse?" -f sample:lighthouse.md)
case $answer in
    *"Ada Brandt"*) ;;
    *) echo "the unpacked program answered: $answer" >&2; exit 1 ;;
esac
for file in man/man1/sala-chat.1 completions/sala-chat.bash completions/_sala-chat completions/sala-chat.fish; do
    [ -s "$clean/$name/$file" ] || { echo "$file is empty" >&2; exit 1; }
done
echo "$out/$name.tar.gz ($(du -h "$out/$name.tar.gz" | cut -f1)) works in an empty directory"
