#!/bin/bash
# The plugin s3 against moto (PyPI, 'moto[server]'), which checks signatures with the
# implementation of Amazon, as boto3 (PyPI) writes and reads the same objects.
# Usage: s3_judge.sh PYTHON TESSERA WORK_FOLDER; PYTHON has moto and boto3.
set -euo pipefail
python=$1
tessera=$2
work=$3
cd "$work"
# The first requests make a user with rights; every later one must be signed by a key of it.
INITIAL_NO_AUTH_ACTION_COUNT=4 MOTO_S3_DEFAULT_MAX_KEYS=3 \
  "$python" -m moto.server -p 0 >moto.log 2>&1 &
server=$!
trap 'kill $server' EXIT
for _ in $(seq 100); do
  port=$(sed -n 's/.*Running on http:\/\/127\.0\.0\.1:\([0-9]*\).*/\1/p' moto.log | head -1)
  [ -n "$port" ] && break
  sleep 0.2
done
export AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_DEFAULT_REGION=us-east-1 HOME=$work
export AWS_ACCESS_KEY_ID=first AWS_SECRET_ACCESS_KEY=first
"$python" - >keys.sh <<'PY'
import boto3, json
iam = boto3.client("iam")
iam.create_user(UserName="u")
iam.put_user_policy(UserName="u", PolicyName="p", PolicyDocument=json.dumps(
    {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}))
key = iam.create_access_key(UserName="u")["AccessKey"]
boto3.client("s3").create_bucket(Bucket="bucket")
print("export AWS_ACCESS_KEY_ID=" + key["AccessKeyId"])
print("export AWS_SECRET_ACCESS_KEY=" + key["SecretAccessKey"])
PY
source keys.sh
run() { "$tessera" train --ranks 2 "$@" train.log_every=100 log.metrics= log.sample=0; }
run 'checkpoint.folder="s3://bucket/runs/a"' checkpoint.every=2 checkpoint.keep=2 train.steps=5
run 'checkpoint.folder=here' checkpoint.every=0 train.steps=8
run 'checkpoint.folder="s3://bucket/runs/a"' checkpoint.every=3 checkpoint.keep=2 train.steps=8
"$tessera" checkpoint verify s3://bucket/runs/a
"$tessera" checkpoint diff here/step-00000008 s3://bucket/runs/a/step-00000008
"$python" - <<'PY'
import boto3, pathlib
s3 = boto3.client("s3")
names = [o["Key"] for p in s3.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix="runs/a/")
         for o in p.get("Contents", [])]
steps = sorted({n.split("/")[2] for n in names})
assert steps == ["step-00000006", "step-00000008"], names
assert not s3.list_multipart_uploads(Bucket="bucket").get("Uploads")
folder = pathlib.Path("copied")
folder.mkdir()
for name in names:
    if "step-00000008" in name:
        s3.download_file("bucket", name, str(folder / name.split("/")[-1]))
PY
"$tessera" checkpoint diff copied here/step-00000008
AWS_SECRET_ACCESS_KEY=wrong "$tessera" checkpoint verify s3://bucket/runs/a 2>wrong.log && exit 1
grep -q SignatureDoesNotMatch wrong.log
echo "s3_judge: moto and boto3 agree"
