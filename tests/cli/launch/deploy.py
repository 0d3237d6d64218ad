# deploy.py - the commands of examples/deploy and of the Dockerfile, executed. SPDX-License-Identifier: Apache-2.0
from harness import *

DEPLOY = os.path.join(ROOT, "examples", "deploy")
BIN = os.path.dirname(LAUNCH)


def run_lines():
    """The RUN lines of each stage, continuation lines joined."""
    stages = []
    with open(os.path.join(ROOT, "Dockerfile")) as f:
        text = f.read().replace("\\\n", " ")
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append([])
        elif word == "RUN":
            stages[-1].append(rest)
    return stages


def copy_of_the_tree(to):
    """Sources and the objects of the plain build, so that `make` has little to do; its compiler."""
    flags = os.path.join(ROOT, "build", "gcc-release", "flags")
    if os.environ.get("DSC_SAN") or not os.path.exists(flags):
        raise Skipped("the plain build with gcc is not here")
    with open(flags) as f:
        compiler = f.read().split(" -")[0]
    variant = os.path.relpath(os.path.dirname(flags), ROOT)
    command = (f"tar -C {ROOT} --exclude=./build --exclude=./.git --exclude=./data --exclude=./bin/examples -cf - . | "
               f"tar -C {to} -xf - && tar -C {ROOT} --exclude={variant}/tests -cf - {variant} | tar -C {to} -xf -")
    p = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    equal(p.returncode, 0, p)
    return compiler


@test
def the_dockerfiles_RUN_lines_build_and_install():
    if os.geteuid() != 0:
        raise Skipped("they install packages, which needs root")
    with Folder() as f:
        env = clean_env(CC=copy_of_the_tree(f.path), CUDA="0")  # nvcc alone would take longer than all else
        for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "DSC_SAN"):
            env.pop(name, None)
        build, final = run_lines()
        for line in build:
            p = subprocess.run(["sh", "-c", line], cwd=f.path, env=env, capture_output=True, text=True, timeout=900)
            equal(p.returncode, 0, line, p)
        out = f.path + "/out/usr/local"
        check(os.path.exists(out + "/lib/libdsc.so") and os.path.exists(out + "/share/dsc/configs/ds_config.json"))
        shutil.copy(os.path.join(ROOT, "tools", "deps.sh"), out + "/share/dsc/")  # COPY
        for line in final:
            p = subprocess.run(["sh", "-c", line], cwd=f.path, env={**env, "PATH": out + "/bin:" + env["PATH"]},
                               capture_output=True, text=True, timeout=300)
            equal(p.returncode, 0, line, p)


def manifests():
    try:
        import yaml
    except ImportError:
        raise Skipped("python3 has no yaml (python3-yaml)")
    objects = []
    for name in ("k8s/dsc-job.yaml", "ray/rayjob.yaml"):
        with open(os.path.join(DEPLOY, name)) as f:
            objects += [o for o in yaml.safe_load_all(f)]
    return {o["kind"]: o for o in objects}


@test
def the_pods_command_trains_to_the_bits_of_one_host():
    objects = manifests()
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        raise Skipped("names of pods need a mount namespace")
    job = objects["Job"]["spec"]
    pod = job["template"]["spec"]
    container = pod["containers"][0]
    equal((job["completionMode"], job["completions"], pod["subdomain"], objects["Service"]["spec"]["clusterIP"]),
          ("Indexed", job["parallelism"], objects["Service"]["metadata"]["name"], "None"))
    values = {e["name"]: e.get("value") for e in container["env"]}
    equal((values["JOB"], values["SERVICE"], int(values["PODS"])),
          (objects["Job"]["metadata"]["name"], pod["subdomain"], job["completions"]))
    with Folder() as f:
        f.file("config.json", objects["ConfigMap"]["data"]["ds_config.json"])
        f.file("text.txt", "so it goes, on and on; " * 400)
        train = ["train", "--config", "config.json", "--model", "gpt2-nano", "--data", "text.txt", "--seq-len", "16",
                 "--batch-size", "2", "--steps", "2", "--save"]
        names = [f"{values['JOB']}-{i}.{values['SERVICE']}" for i in range(job["completions"])]
        hosts = f.file("hosts", "127.0.0.1 localhost " + " ".join(names) + "\n")
        token = os.urandom(16).hex()

        def start_pod(i):
            env = clean_env(PATH=BIN + ":" + os.environ["PATH"], DSC_JOB_TOKEN=token, JOB_COMPLETION_INDEX=str(i))
            env.update({k: v for k, v in values.items() if v is not None})
            return subprocess.Popen(["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts,
                                     *container["command"], *train, "pods"], cwd=f.path, env=env, text=True,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        pods = [start_pod(i) for i in range(job["completions"])]
        outs = [p.communicate(timeout=60)[0] for p in pods]
        equal([p.returncode for p in pods], [0] * len(pods), *outs)
        r = launch("-np", str(len(pods)), *train, "one", cwd=f.path, timeout=60)
        equal(r.code, 0, r)
        hashes = [subprocess.run([f"{BIN}/dsc", "ckpt", "hash", f"{f.path}/{d}/step-2"], capture_output=True,
                                 text=True).stdout for d in ("pods", "one")]
        equal((len(hashes[0]), len(set(hashes))), (65, 1), hashes, outs)


@test
def the_manifests_fit_kubernetes_schemas():
    objects = manifests()
    try:
        import kubernetes_validate
    except ImportError:
        raise Skipped("python3 has no kubernetes-validate")
    for kind, o in objects.items():
        if kind != "RayJob":  # not Kubernetes' own
            kubernetes_validate.validate(o, "1.29", strict=True)


def make_strict(schema):
    """A field that a schema does not name is an error, as with `kubectl apply --validate=strict`."""
    if isinstance(schema, list):
        for part in schema:
            make_strict(part)
    elif isinstance(schema, dict):
        if schema.get("x-kubernetes-int-or-string"):
            schema["type"] = ["integer", "string"]
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        for part in schema.values():
            make_strict(part)


@test
def the_ray_job_fits_kuberays_schema():
    path = os.environ.get("DSC_KUBERAY_CRD")
    if path is None:
        raise Skipped("DSC_KUBERAY_CRD does not name KubeRay's ray.io_rayjobs.yaml")
    job = manifests()["RayJob"]
    import jsonschema, yaml
    with open(path) as f:
        versions = {v["name"]: v["schema"]["openAPIV3Schema"] for v in yaml.safe_load(f)["spec"]["versions"]}
    schema = versions[job["apiVersion"].split("/")[1]]
    make_strict(schema)
    schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own
    jsonschema.validate(job, schema)
    job["spec"]["entrypoints"] = job["spec"].pop("entrypoint")
    check(not jsonschema.Draft7Validator(schema).is_valid(job), "a misspelt field passes")


@test
def the_files_of_settings_are_env_files():
    names = sorted(os.listdir(DEPLOY + "/fabric"))
    equal(names, ["efa.env", "infiniband.env", "roce.env"])
    for name in names:
        p = subprocess.run([f"{BIN}/dsc", "check", "--kind", "envfile", f"{DEPLOY}/fabric/{name}"], capture_output=True,
                           text=True)
        equal(p.returncode, 0, p)


@test
def ray_actors_start_ranks():
    if subprocess.run([sys.executable, "-c", "import ray"], capture_output=True).returncode != 0:
        raise Skipped("python3 has no ray")
    with Folder() as f:
        f.file("text.txt", "so it goes, on and on; " * 400)
        f.file("config.json", json.dumps({"train_batch_size": 4, "bf16": {"enabled": False}, "optimizer": {"type": "AdamW"},
                                          "zero_optimization": {"stage": 2}}))
        train = ["train", "--config", "config.json", "--model", "gpt2-nano", "--data", "text.txt", "--seq-len", "16", "--steps",
                 "3", "--save"]
        env = clean_env(PATH=BIN + ":" + os.environ["PATH"], RAY_USAGE_STATS_ENABLED="0")

        def ray_job(*command):
            return subprocess.run([sys.executable, f"{DEPLOY}/ray/dsc_ray.py", "--nodes", "2", "--ranks_per_node", "1", "--",
                                   *command], cwd=f.path, env=env, capture_output=True, text=True, timeout=180)
        p = ray_job(*train, "ray")
        equal(p.returncode, 0, p)
        equal(launch("-np", "2", *train, "one", cwd=f.path, timeout=60).code, 0)
        hashes = [subprocess.run([f"{BIN}/dsc", "ckpt", "hash", f"{f.path}/{d}/step-3"], capture_output=True,
                                 text=True).stdout for d in ("ray", "one")]
        equal((len(hashes[0]), len(set(hashes))), (65, 1), hashes, p)
        p = ray_job("sh", "-c", "[ $RANK = 1 ] && exit 9; exec sleep 600")
        equal(p.returncode, 9, p)


words = [a for a in sys.argv[1:] if not a.startswith("-")]
sys.exit(run_all(words[0] if words else ""))
