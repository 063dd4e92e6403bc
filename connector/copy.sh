#!/bin/sh
# Copies the connector into the folder that engines import it from: copy.sh FOLDER. Any user who may write there may run it, again too.
set -eu
umask 022
source=${PDD_CONNECTOR_SOURCE:-/pdd-connector}
target=$1
mkdir -p "$target"
# A container that was killed half-way is started again: what it left is not mixed with what is copied now.
rm -rf "$target"/*
cp -R "$source"/. "$target"/
chmod -R u+w "$target"/*
echo "copied the connector to $target"
