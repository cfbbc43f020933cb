#!/bin/bash
# The plugin s3 against moto (PyPI, 'moto[server]'), which checks signatures with the
# implementation of Amazon, as boto3 (PyPI) writes and reads the same objects.
# Usage: s3_judge.sh TEST_S3. TESSERA_MOTO_PYTHON names a Python that has moto and boto3; else 77.
set -euo pipefail
test=$(realpath "$1")
python=${TESSERA_MOTO_PYTHON:-}
if [ -z "$python" ]; then
  echo "not run: TESSERA_MOTO_PYTHON does not name a Python that has moto"
  exit 77
fi
work=$(mktemp -d)
cd "$work"
# The first requests make a user with rights; every later one must be signed by a key of it.
INITIAL_NO_AUTH_ACTION_COUNT=4 MOTO_S3_DEFAULT_MAX_KEYS=3 \
  "$python" -m moto.server -p 0 >moto.log 2>&1 &
server=$!
trap 'kill $server; rm -rf "$work"' EXIT
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
"$test" "[.moto]"
"$python" - <<'PY'
import boto3
s3 = boto3.client("s3")
names = [o["Key"] for p in s3.get_paginator("list_objects_v2").paginate(Bucket="bucket") for o in p.get("Contents", [])]
steps = sorted({n.split("/")[1] for n in names if n.startswith("run/")})
assert steps == ["step-00000002", "step-00000003"], names
assert s3.head_object(Bucket="bucket", Key="objects/large")["ContentLength"] == 40_000_000
assert s3.get_object(Bucket="bucket", Key="objects/a b+c=d&e%f~g")["Body"].read() == b"a b+c=d&e%f~g"
assert not s3.list_multipart_uploads(Bucket="bucket").get("Uploads")
PY
echo "s3_judge: moto and boto3 agree"
