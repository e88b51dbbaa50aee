#!/bin/sh
# Installs Atelier for this user: downloads the archive of a release, checks it, and puts the program into a folder.
#
#   curl -fsSL https://github.com/OWNER/atelier/releases/latest/download/install.sh | sh
#
# ATELIER_DOWNLOAD   where the archives are        (default: the newest release)
# ATELIER_BIN        the folder for the program    (default: ~/.local/bin)
set -eu

from=${ATELIER_DOWNLOAD:-https://github.com/OWNER/atelier/releases/latest/download}
bin=${ATELIER_BIN:-$HOME/.local/bin}

fail() {
    echo "install: $1" >&2
    exit 1
}

fetch() {
    if command -v curl >/dev/null; then
        curl -fsSL "$from/$1" -o "$2"
    elif command -v wget >/dev/null; then
        wget -q "$from/$1" -O "$2"
    else
        fail "curl or wget is needed"
    fi || fail "cannot download $from/$1"
}

[ "$(uname -s)" = Linux ] || fail "there is no binary for $(uname -s) yet; build it with \`make run\` in a checkout"
machine=$(uname -m)
case $machine in
    x86_64 | aarch64) ;;
    *) fail "there is no binary for $machine yet; build it with \`make run\` in a checkout" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch SHA256SUMS "$work/SHA256SUMS"
archive=$(sed -n "s/^[0-9a-f]*  \(atelier-.*-$machine-linux\.tar\.gz\)$/\1/p" "$work/SHA256SUMS")
[ -n "$archive" ] || fail "$from has no archive for $machine"
fetch "$archive" "$work/$archive"
(cd "$work" && grep "  $archive\$" SHA256SUMS | sha256sum -c - >/dev/null 2>&1) ||
    fail "the checksum of $archive is wrong; nothing was installed"
tar -xzf "$work/$archive" -C "$work"
mkdir -p "$bin"
# The weights of the default embedder: the program looks for them in ../lib/atelier.
weights=$(dirname "$bin")/lib/atelier
mkdir -p "$weights"
rm -rf "$weights/.minilm.new"
cp -R "$work/${archive%.tar.gz}/minilm" "$weights/.minilm.new"
rm -rf "$weights/minilm"
mv "$weights/.minilm.new" "$weights/minilm"
# Renaming works even if the program is running.
cp "$work/${archive%.tar.gz}/atelier" "$bin/.atelier.new"
mv "$bin/.atelier.new" "$bin/atelier"
echo "Installed $("$bin/atelier" --version) as $bin/atelier"
case :$PATH: in
    *":$bin:"*) ;;
    *) echo "Add it to your PATH: export PATH=\"$bin:\$PATH\"" ;;
esac
echo "Start it with: atelier serve"
