#!/bin/sh
# Copies the connector into the folder that engines import it from: copy.sh FOLDER. Any user who may write there may run it, again too.
set -eu
cp -R /pdd-connector/. "$1"
echo "copied the connector to $1"
