#include "support.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "catch.hpp"

namespace equivalence {
namespace {

const std::string kFsdp = R"([[parallel]]
style = "FSDP"
axis = "shard"
on = ["model.layers.*", "."]
)";

const std::string kReplicate = R"([[parallel]]
style = "Replicate"
axis = "replicate"
on = ["."]
)";

const std::string kTensor = R"([[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["model.layers.*.self_attn.{q,k,v}_proj", "model.layers.*.mlp.{gate,up}_proj"]
[[parallel]]
style = "RowwiseParallel"
axis = "tensor"
on = ["model.layers.*.self_attn.o_proj", "model.layers.*.mlp.down_proj"]
)";

std::string mesh(const std::string& axes, const std::string& shape) {
  return "[mesh]\naxes = [" + axes + "]\nshape = [" + shape + "]\n";
}

/// The styles of a config, so that the shipped file is what is tested.
std::string styles_of(const std::string& config) {
  const std::string text = read_file(TESSERA_SOURCE_FOLDER "/configs/" + config);
  const std::size_t begin = text.find("[mesh]");
  return text.substr(begin, text.find("[log]") - begin);
}

/// The same with FSDP on another axis in front.
std::string with_fsdp(std::string styles) {
  const std::string one = mesh(R"("tensor")", "2");
  return styles.replace(styles.find(one), one.size(), mesh(R"("shard", "tensor")", "2, 2")) + kFsdp;
}

std::string quoted(const std::string& text) { return "'" + text + "'"; }

}  // namespace

std::string reference(const std::string& path) {
  return TESSERA_SOURCE_FOLDER "/tests/reference/data/" + path;
}

Result run(const std::string& arguments) {
  const Folder folder;
  const std::string line =
      TESSERA_PROGRAM " " + arguments + " >" + folder / "out" + " 2>" + folder / "error";
  const int status = std::system(line.c_str());  // NOLINT(bugprone-command-processor)
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder / "out"),
          read_file(folder / "error")};
}

std::string succeed(const std::string& arguments) {
  const Result result = run(arguments);
  INFO("tessera " << arguments << "\n" << result.error);
  REQUIRE(result.code == 0);
  return result.out;
}

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"one rank", "", 4},
      {"FSDP 2", mesh(R"("shard")", "2") + kFsdp, 3},
      {"FSDP 3", mesh(R"("shard")", "3") + kFsdp, 2},
      {"FSDP 4", mesh(R"("shard")", "4") + kFsdp, 1},
      {"Replicate 2", mesh(R"("replicate")", "2") + kReplicate, 2},
      {"Replicate 2 x FSDP 2", mesh(R"("replicate", "shard")", "2, 2") + kReplicate + kFsdp, 1},
      {"TP 2", mesh(R"("tensor")", "2") + kTensor, 4},
      {"TP 2 with sequence parallel", styles_of("sequence_parallel.toml"), 6},
      {"TP 2 with sequence and loss parallel", styles_of("loss_parallel.toml"), 6},
      {"FSDP 2 x TP 2 with sequence and loss parallel", with_fsdp(styles_of("loss_parallel.toml")),
       2},
      {"FSDP 2 x TP 2", mesh(R"("shard", "tensor")", "2, 2") + kTensor + kFsdp, 2}};
  return all;
}

const std::vector<Layout>& usual_layouts() {
  static const std::vector<Layout> some = {layout("one rank"), layout("FSDP 3"),
                                           layout("Replicate 2 x FSDP 2"),
                                           layout("TP 2 with sequence parallel"),
                                           layout("FSDP 2 x TP 2 with sequence and loss parallel")};
  return std::getenv("TESSERA_ALL_LAYOUTS") == nullptr ? some : layouts();
}

const Layout& layout(std::string_view name) {
  return *std::find_if(layouts().begin(), layouts().end(),
                       [&](const Layout& one) { return one.name == name; });
}

std::vector<Step> read_metrics(const std::string& path) {
  std::ifstream file(path);
  std::vector<Step> steps;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    steps.push_back({json["step"], json["loss"], json["grad_norm"], json["lr"]});
    REQUIRE(steps.back().step == steps.front().step + static_cast<std::int64_t>(steps.size()) - 1);
  }
  return steps;
}

std::vector<Step> train(const Folder& folder, const std::string& name, const std::string& text,
                        const Layout& where, const std::string& overrides) {
  // The layout's tables come last: a TOML key belongs to the table above it.
  const std::string config = folder.write(name + ".toml", text + where.config);
  INFO(name << ", " << where.name << ", " << overrides);
  const bool resumes = overrides.find("checkpoint.resume=") != std::string::npos;
  std::filesystem::remove_all(folder / name);  // checkpoints of an earlier run of that name
  succeed("train " + config + " train.threads=1 log.metrics=" + quoted(folder / (name + ".jsonl")) +
          " checkpoint.folder=" + quoted(folder / name) +
          (resumes ? " " : " checkpoint.resume=never ") + overrides);
  return read_metrics(folder / (name + ".jsonl"));
}

std::string checkpoint(const Folder& folder, const std::string& name, std::int64_t step) {
  std::string number = std::to_string(step);
  number.insert(0, 8 - number.size(), '0');
  return folder / (name + "/step-" + number);
}

std::string export_checkpoint(const Folder& folder, const std::string& checkpoint,
                              const std::string& name) {
  const std::string to = folder / name;
  succeed("checkpoint export " + quoted(checkpoint) + " --no-tokenizer --to " + quoted(to));
  return to;
}

std::string write_tokens(const Folder& folder, const std::string& name,
                         const std::vector<std::int32_t>& tokens) {
  std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (" +
                       std::to_string(tokens.size()) + ",), }";
  header.resize(118 - 1, ' ');  // magic, version and length are 10 bytes: 128 in all
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00\x76\x00", 10);
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(std::int32_t));
  return folder.write(name, bytes);
}

double difference(double a, double b) { return std::abs(a - b) / std::abs(b); }

double loss_difference(const std::vector<Step>& a, const std::vector<Step>& b) {
  if (a.size() != b.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, difference(a[i].loss, b[i].loss));
  }
  return largest;
}

bool same_bits(const std::vector<Step>& a, const std::vector<Step>& b) {
  const auto same = [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const Step& x, const Step& y) {
    return x.step == y.step && same(x.loss, y.loss) && same(x.grad_norm, y.grad_norm) &&
           same(x.lr, y.lr);
  });
}

}  // namespace equivalence
