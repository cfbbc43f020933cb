// Wrong inputs: each is one clear error, exit code 2, nothing written and nothing left running.
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "catch.hpp"
#include "program.hpp"

using namespace faults;

namespace {

/// The small run's config with one piece of it exchanged.
std::string config_with(const std::string& piece, const std::string& other) {
  std::string config = small_run;
  return config.replace(config.find(piece), piece.size(), other);
}

/// A .npy file of version 1.0 (NumPy's format page) whose header says `count` ids of type `dtype`.
std::string npy(const std::string& dtype, std::size_t count, const std::string& data) {
  std::string header = "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': (" +
                       std::to_string(count) + ",), }";
  header.resize(117, ' ');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n" + data;
}

const std::string one_axis = "mesh.axes=[shard]";
const std::string two_ranks = "mesh.shape=[2]";
const std::string fsdp = "{style=FSDP,axis=shard,on=[\".\"]}";

}  // namespace

TEST_CASE("wrong configs are refused with file, line and the nearest name") {
  const RunFolder folder;
  is_refused(folder, {"train", "missing.toml"}, {"missing.toml", "cannot be read"});
  const auto config = [&](const char* piece, const char* other,
                          const std::vector<std::string>& words) {
    folder.write("other.toml", config_with(piece, other));
    is_refused(folder, {"train", "other.toml"}, words);
  };
  config("dim = 32", "dim = ", {"other.toml:2:"});
  config("dim = 32", "dmi = 32", {"other.toml:2: model.dmi: unknown key", "'model.dim'"});
  config("[model]", "[modle]", {"other.toml:1: modle: unknown section", "'model'"});
  config("dim = 32", "dim = \"a\"", {"other.toml:2: model.dim: expected an integer", "\"a\""});
  config("steps = 3", "steps = 0", {"train.steps", "at least 1", "got the integer 0"});
  config("style = \"FSDP\"", "stlye = \"FSDP\"", {"stlye", "parallel[2].style"});
}

TEST_CASE("wrong overrides are refused") {
  const RunFolder folder;
  are_refused(
      folder,
      {{{"model.dmi=3"}, {"command line", "unknown key", "'model.dim'"}},
       {{"model.dim=abc"}, {"model.dim: expected an integer", "abc"}},
       {{"nokey"}, {"nokey", "key=value"}},
       {{"=3"}, {"key=value"}},
       {{"mesh.shape=[2,"}, {"mesh.shape", "expected a list"}},
       {{"mesh.shape[x]=2"}, {"mesh.shape[x]=2", "key=value"}},
       {{"parallel[7].style=FSDP"}, {"parallel has 3 entries", "parallel[0] to parallel[3]"}},
       {{"parallel[5]=3"}, {"parallel has 3 entries"}},
       {{"parallel[0]=3"}, {"parallel[0]: expected a table such as {style=", "parallel[0].on"}},
       {{"parallel=3"}, {"parallel: expected a list of tables", "parallel=[{style=", "(none)"}},
       {{"parallel.axis=shard"}, {"parallel is a list", "parallel[0].axis"}},
       {{"parallel.1.axis=shard"}, {"parallel is a list", "write parallel[1]"}},
       {{"a.b.c=3"}, {"a: unknown section", "SECTION.KEY", "model, data"}},
       {{"train.steps.x=3"}, {"train.steps is a single value", "train.steps=VALUE"}},
       {{"train[0]=3"}, {"train is not a list", "train.KEY"}},
       {{"train=5"}, {"train: expected a section"}},
       {{"optimizer.groups=3", "optimizer.lr=-1", "data.order=random"},
        {"problems", "optimizer.groups", "optimizer.lr", "data.order", "\"shuffled\""}},
       {{"optimizer.name=adan"},
        {"optimizer.name: there is no optimizer 'adan' (there are adadelta, "}},
       {{"optimizer.options.betas=[2,1]"},
        {"optimizer.options: option 'betas' must be two numbers"}},
       {{"optimizer.options.beta1=0.9"},
        {"optimizer.options: there is no option 'beta1' (options: amsgrad, betas, eps, "}},
       {{"optimizer.groups=[{on=[nothing]}]"},
        {"optimizer.groups: the pattern 'nothing' matches no parameter\n"}},
       {{"optimizer.groups=[{on=[\"**\"],lr=-1}]"},
        {"option 'groups[0].lr' must be a number more than 0 (got -1)"}},
       {{"optimizer.groups=[{on=[\"**\"],rate=1}]"},
        {"there is no option 'groups[0].rate' (options of 'groups[0]': lr, name, on and "
         "weight_decay)"}}});
}

TEST_CASE("wrong data is refused") {
  const RunFolder folder;
  folder.write("empty.txt", "");
  folder.write("short.txt", "hello");
  folder.write("binary.bin", std::string(5000, '\x01') + std::string(5000, '\0'));
  const std::string zeros(2000, '\0');
  folder.write("cut.npy", npy("<u2", 1000, zeros.substr(0, 900)));
  folder.write("float.npy", npy("<f4", 500, zeros));
  folder.write("range.npy",
               npy("<u2", 1000, zeros.substr(0, 1000) + "\xff\x7f" + zeros.substr(0, 998)));
  folder.write("not.npy", "hello");
  const auto tokens = [](const std::string& file) {
    return std::vector<std::string>{"data.text=[]", "data.tokens=[" + file + "]", "model.vocab=100",
                                    "train.batch=2"};
  };
  are_refused(folder, {{{"data.text=[nothere.txt]"}, {"nothere.txt", "no such file"}},
                       {{"data.text=[empty.txt]"}, {"empty.txt", "empty"}},
                       {{"data.text=[short.txt]"}, {"too short", "train.batch", "data.seq_len"}},
                       {{"data.text=[binary.bin]"}, {"binary.bin", "not text", "byte 5000"}},
                       {{"data.text=[]"}, {"data.text", "nothing to train on"}},
                       {tokens("nothere.npy"), {"nothere.npy"}},
                       {tokens("cut.npy"), {"cut.npy"}},
                       {tokens("float.npy"), {"float.npy", "<f4"}},
                       {tokens("range.npy"), {"range.npy", "32767", "100"}},
                       {tokens("not.npy"), {"not.npy"}}});
}

TEST_CASE("meshes that do not fit are refused") {
  const RunFolder folder;
  are_refused(
      folder,
      {{{"mesh.axes=[shard,shard]"}, {"mesh.axes", "'shard' is named twice"}},
       {{"mesh.axes=[shard]"}, {"mesh.shape", "1 axes, 2 extents"}},
       {{"mesh.shape=[2,0]"}, {"mesh.shape[1]", "at least 1"}},
       {{"mesh.axes=[shard,tensor,pipe]", "mesh.shape=[2,2,2]"}, {"no style uses axis 'pipe'"}},
       {{"parallel=[]"}, {"no style uses axis 'shard'"}},
       {{"parallel[0].axis=tensr"}, {"no axis 'tensr'", "'tensor'?"}},
       {{"model.dim=48", "model.heads=3", "model.kv_heads=3"}, {"3 heads", "2 ranks"}},
       {{"train.batch=3"}, {"train.batch", "3 sequences", "multiple of 2"}},
       {{"train.micro_batch=3"}, {"train.micro_batch", "3 does not divide", "2 sequences"}}});
}

TEST_CASE("styles that do not fit are refused before the run") {
  const RunFolder folder;
  const std::string up = "on=[\"model.layers.*.mlp.up_proj\"]";
  const std::string colwise = "{style=ColwiseParallel,axis=tensor," + up + "}";
  const std::string rowwise = "{style=RowwiseParallel,axis=tensor," + up + "}";
  const std::string replicate = "{style=Replicate,axis=shard,on=[\".\"]}";
  are_refused(
      folder,
      {{{"parallel[0].style=ColwiseParalel"},
        {"no plugin provides it", "did you mean 'ColwiseParallel'"}},
       {{"parallel[0].on=[model.layers.*.self_attn.q_prj]"}, {"matches no module", "q_proj"}},
       {{"parallel[0].on=[\"model.layers.*.{q,k\"]"}, {"braces do not pair"}},
       {{"parallel[0].on=[]"}, {"parallel[0].on: is empty"}},
       {{"parallel[2].options={reshard_after_forwrd=true}"},
        {"FSDP", "no option 'reshard_after_forwrd'", "'reshard_after_forward'?"}},
       {{"parallel[2].options={reshard_after_forward=3}"}, {"FSDP", "true or false", "got 3"}},
       {{"parallel[0].options={output=\"Shrad(1)\"}"}, {"ColwiseParallel", "'Shrad(1)'", "Shard"}},
       {{"parallel[0].on=[model.norm]"}, {"ColwiseParallel", "'model.norm' is a RMSNorm"}},
       {{"parallel[1].on=[model.norm]"}, {"RowwiseParallel", "'model.norm' is a RMSNorm"}},
       {{"parallel[0].axis=shard"}, {"ColwiseParallel", "FSDP", "'shard'"}},
       {{"parallel=[" + fsdp + "," + colwise + "]"}, {"FSDP: must come after ColwiseParallel"}},
       {{one_axis, two_ranks, "parallel=[" + replicate + "," + fsdp + "]"},
        {"Replicate", "FSDP", "cannot share axis 'shard'"}},
       {{one_axis, two_ranks, "parallel=[" + fsdp + "," + replicate + "]"},
        {"Replicate", "FSDP", "cannot share axis 'shard'"}},
       {{"parallel=[" + colwise + "," + rowwise + "," + fsdp + "]"},
        {"up_proj.weight", "Shard(0)", "ColwiseParallel; RowwiseParallel needs Shard(1)"}}});
}

TEST_CASE("layouts that do not fit are found before the ranks start") {
  const RunFolder folder;
  const auto tensor_run = [](const std::string& entries) {
    return std::vector<std::string>{"mesh.axes=[tensor]", two_ranks, "parallel=[" + entries + "]"};
  };
  const auto style = [](const std::string& name, const std::string& on,
                        const std::string& options = "") {
    return "{style=" + name + ",axis=tensor,on=[\"" + on + "\"]" +
           (options.empty() ? "" : ",options={" + options + "}") + "}";
  };
  const std::string q = "model.layers.*.self_attn.q_proj";
  const std::string up = "model.layers.*.mlp.up_proj";
  std::vector<Case> cases = {
      // Module, operator or value, and the entries that are at work there.
      {tensor_run(style("ColwiseParallel", q)),
       {"module 'model.layers.0", "rms_norm: operand 'x'", "Partial(sum)",
        "styles applied in 'model.layers.0': ", "ColwiseParallel on 'tensor'"}},
      {tensor_run(style("SequenceParallel", q)),
       {"module 'model.layers.0.self_attn.inner_attention'", "causal_attention: operand 'q'",
        "[Shard(1)]", "SequenceParallel on 'tensor'"}},
      {tensor_run(style("ColwiseParallel", up, "output=\"Shard(7)\"")),
       {"module 'model.layers.0.mlp.up_proj'", "output 0 has 3 dims", "Shard(7)",
        "ColwiseParallel on 'tensor'"}},
      {tensor_run(style("ColwiseParallel", up) + "," +
                  style("ColwiseParallel", "**.up_proj", "output=\"Replicate\"")),
       {"ColwiseParallel is applied to module 'model.layers.0.mlp.up_proj' along axis 'tensor' "
        "already"}},
      {tensor_run(style("LossParallel", "loss")),
       {"module 'loss'", "LossParallel: the logits have the wrong placement", "expected Shard(2)",
        "got Replicate", "lm_head"}},
      {tensor_run(style("LossParallel", "lm_head")),
       {"is a Linear", "of the kind CrossEntropyLoss", "CrossEntropyLoss"}},
      {tensor_run(style("PrepareModuleInput", up, "desired={inptu=\"Shard(1)\"}")),
       {"has no input 'inptu'", "did you mean 'input'"}},
      {{one_axis, two_ranks, "parallel=[" + fsdp + "," + fsdp + "]"},
       {"FSDP is applied to the whole model along axis 'shard' already"}}};
  are_refused(folder, cases);
  for (Case& one : cases) {
    one.arguments.emplace_back("--dry-run");
  }
  are_refused(folder, cases);
}

TEST_CASE("outputs that cannot be written are refused before the run") {
  const RunFolder folder;
  are_refused(folder,
              {{{"checkpoint.folder=text.txt"}, {"checkpoint.folder", "not a folder"}},
               {{"checkpoint.folder=text.txt/inner"}, {"checkpoint.folder", "not a folder"}},
               {{"log.metrics=."}, {"log.metrics", "is a folder"}},
               {{"log.metrics=text.txt/m.jsonl"}, {"log.metrics", "not a folder"}},
               {{"parallel[0].options={output=\"Partial(sum)\"}"},
                {"q_proj", "cannot redistribute a value to Partial(sum)"}}});
}

TEST_CASE("commands refuse what is no checkpoint") {
  const RunFolder folder;
  is_refused(folder, {"train", "run.toml", "checkpoint.resume=nowhere"},
             {"nowhere", "not a checkpoint"});
  is_refused(folder, {"generate", "nowhere", "--prompt", "x"},
             {"nowhere", "there is no such file or folder"});
  is_refused(folder, {"generate", "text.txt", "--prompt", "x"}, {"text.txt", "not a checkpoint"});
  is_refused(folder, {"generate", "nowhere"}, {"--prompt"});
  is_refused(folder, {"checkpoint", "info", "text.txt"}, {"text.txt", "not a checkpoint"});
  is_refused(folder, {"checkpoint", "export", "nowhere", "--to", "x"},
             {"nowhere", "not a checkpoint"});
}

TEST_CASE("a checkpoint of another model or optimizer is refused before the run") {
  const RunFolder folder;
  Program program(folder, {"train", "run.toml", "train.steps=1", "checkpoint.every=1"});
  REQUIRE(program.wait(60).code == 0);
  are_refused(folder,
              {{{"checkpoint.every=1", "optimizer.name=sgd"},
                {"optimizer.name: \"adamw\" in the checkpoint, \"sgd\" in the config"}},
               {{"checkpoint.every=1", "optimizer.name=sgd", "checkpoint.allow=[optimizer]"},
                {"unexpected", "optimizer.exp_avg.lm_head.weight", "more", "saved with"}},
               {{"checkpoint.every=1", "model.ffn_dim=96", "checkpoint.allow=[model]"},
                {"model.model.layers.0.mlp.down_proj.weight", "[32, 96]", "[32, 64]"}}});
}

TEST_CASE("model folders from anywhere are refused quickly, by file and field") {
  const RunFolder folder;
  Program trained(folder, {"train", "run.toml", "train.steps=1", "checkpoint.every=1"});
  REQUIRE(trained.wait(60).code == 0);
  REQUIRE(run(folder, {"checkpoint", "export", "checkpoints/step-00000001", "--to", "hf"}).code ==
          0);
  const std::string good = read_file(folder / "hf/config.json");
  std::string from = small_run;
  from.replace(0, from.find("[data]"), "[model]\nfrom = \"hf\"\n");
  folder.write("from.toml", from);
  const auto with = [&](const std::string& file, const std::string& bytes,
                        const std::vector<std::string>& words) {
    const std::string before = read_file(folder / file);
    folder.write(file, bytes);
    const auto begin = std::chrono::steady_clock::now();
    is_refused(folder, {"train", "from.toml", "--dry-run"}, words);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    INFO(file << ": " << words[0]);
    CHECK(seconds.count() < 10);  // it took minutes, or 20 s
    folder.write(file, before);
  };
  const auto config = [&](const std::string& key, const std::string& value,
                          const std::vector<std::string>& words) {
    std::string text = good;
    const std::size_t at = text.find("\"" + key + "\": ") + key.size() + 4;
    with("hf/config.json", text.replace(at, text.find_first_of(",\n", at) - at, value), words);
  };
  config("num_hidden_layers", "16777216", {"config.json: num_hidden_layers", "16777216"});
  config("num_hidden_layers", "100000", {"num_hidden_layers is 100000", "the weights have 2"});
  config("vocab_size", "255", {"vocab_size is 255", "has shape [256,"});
  config("intermediate_size", "16777216", {"intermediate_size is 16777216"});
  config("attention_dropout", "0.1", {"config.json: attention_dropout 0.1 is not supported"});
  config("hidden_size", "\"32\"", {"config.json: hidden_size: expected a positive integer"});
  std::string brackets;
  brackets.resize(50'000'000, '[');
  with("hf/config.json", brackets, {"hf/config.json"});
  with("hf/config.json", "{\"a\":" + brackets.substr(0, 10'000'000), {"hf/config.json"});
  with("hf/generation_config.json", brackets, {"hf/generation_config.json"});
  const std::uint64_t length = brackets.size();
  with("hf/model.safetensors",
       std::string(reinterpret_cast<const char*>(&length), sizeof length) + brackets,
       {"hf/model.safetensors", "header"});
}

TEST_CASE("a checkpoint that is being written is not one") {
  const RunFolder folder;
  Program trained(folder, {"train", "run.toml", "train.steps=1", "checkpoint.every=1"});
  REQUIRE(trained.wait(60).code == 0);
  // A save writes the parts first, and the index before it renames the folder.
  const std::string saved = folder / "checkpoints/step-00000001";
  const std::string half = folder / "checkpoints/step-00000002.tmp-1";
  std::filesystem::copy(saved, half, std::filesystem::copy_options::recursive);
  std::filesystem::remove(half + "/checkpoint.json");
  is_refused(folder, {"generate", half, "--prompt", "a"}, {half, "not a checkpoint"});
  is_refused(folder, {"checkpoint", "export", half, "--to", "out"}, {half, "not a checkpoint"});
}
