// Encoders compute and learn what transformers does with the same folders: outputs of rows of
// different lengths, gradients of every tensor of a folder, 20 steps of AdamW.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"
#include "on_ranks.hpp"

import tessera.base;
import tessera.autograd;
import tessera.checkpoint;
import tessera.collective;
import tessera.dtensor;
import tessera.encoders;
import tessera.hub;
import tessera.mesh;
import tessera.nn;
import tessera.ops;
import tessera.optim;
import tessera.parallel;
import tessera.placement;
import tessera.plugin;
import tessera.tensor;
import tessera.train;

#include "differences.hpp"

using namespace tessera;
using encoders::EncoderFolder;
using encoders::EncoderModel;
using testing::largest_difference;

namespace {

const std::string data = TESSERA_REFERENCE_DATA "/families/";

nlohmann::json json_of(const std::string& name) {
  return nlohmann::json::parse(std::ifstream(data + name + ".json"));
}

/// What transformers has computed with a folder.
struct Stored {
  explicit Stored(const std::string& name)
      : json(json_of(name)), file(data + name + ".safetensors"), folder(data + name) {}

  Tensor find(const std::string& name) const {
    return file.contains(name) ? file.read(name) : Tensor();
  }
  Tensors inputs() const {
    return file.contains("pixel_values")
               ? Tensors{find("pixel_values")}
               : Tensors{find("input_ids"), find("attention_mask"), find("token_type_ids")};
  }
  Tensor labels() const {
    if (file.contains("labels")) {
      return find("labels");
    }
    const std::vector<std::int64_t> all = json["labels"];
    return from_values(std::span<const std::int64_t>(all), {std::ssize(all)});
  }

  nlohmann::json json;
  SafetensorsFile file;
  std::string folder;
};

/// For docs/encoders.md.
void table_line(const std::string& cells) {
  if (std::getenv("TESSERA_ENCODER_TABLE") != nullptr) {
    fmt::print("| {} |\n", cells);
  }
}

/// Of tokens that are shown: nobody reads what becomes of the others.
Tensor of_shown(const Tensor& hidden, const Tensor& mask) {
  return mask ? ops::masked_fill(hidden, ops::unsqueeze(ops::eq(mask, 0.0), 2), 0) : hidden;
}

/// The largest difference of a tensor's gradient, as a share of its norm.
double gradient_difference(EncoderModel& model, const Stored& stored) {
  std::map<std::string, Tensor> gradients;
  for (const nn::ParameterPointer& p : nn::all_parameters(model)) {
    gradients.emplace(p->name, p->value.grad() ? p->value.grad() : zeros(p->value.shape()));
  }
  const testing::Folder folder;
  encoders::EncoderConfig config = EncoderFolder(stored.folder).config();
  config.dtype = "float32";
  encoders::write_encoder_folder(config, TensorsInMemory(gradients), folder / "gradients");
  const SafetensorsFolder named(folder / "gradients");
  double squares_of_all = 0;
  for (const auto& [key, wanted] : stored.json["gradients"].items()) {
    squares_of_all += wanted[0].get<double>() * wanted[0].get<double>();
  }
  const double whole = std::sqrt(squares_of_all);
  double largest = 0;
  for (const auto& [key, wanted] : stored.json["gradients"].items()) {
    INFO(key);
    REQUIRE(named.contains(key));
    const std::vector<double> values = to_doubles(named.read(key));
    double squares = 0;
    for (const double value : values) {
      squares += value * value;
    }
    const double norm = wanted[0];
    // The true gradient of a key's bias is 0: what rounding leaves is a share of all gradients.
    const double scale = norm < 1e-9 * whole ? whole : std::max(norm, 1e-3);
    double apart = std::abs(std::sqrt(squares) - norm) / scale;
    for (const auto& element : wanted[1]) {
      const double value = values[element[0].get<std::size_t>()];
      apart = std::max(apart, std::abs(value - element[1].get<double>()) / scale);
    }
    largest = std::max(largest, apart);
  }
  return largest;
}

}  // namespace

TEST_CASE("logits and gradients of encoders are those of transformers") {
  for (const std::string name : {"bert", "modernbert", "vit", "bert_masked", "modernbert_masked"}) {
    DYNAMIC_SECTION(name) {
      const Stored stored(name);
      const auto model = encoders::encoder_from_folder(stored.folder);
      model->train(false);
      const Tensor mask = stored.find("attention_mask");
      double hidden = 0;
      if (const Tensor wanted = stored.find("last_hidden_state")) {
        const NoGrad no_grad;
        hidden = largest_difference(of_shown(model->hidden_states(stored.inputs()), mask),
                                    of_shown(wanted, mask));
      }
      const Tensor of_tokens = name.ends_with("masked") ? mask : Tensor();
      const double logits =
          largest_difference(of_shown(detached((*model)(stored.inputs())[0]), of_tokens),
                             of_shown(stored.find("logits"), of_tokens));
      const Tensor labels = stored.labels();
      const double count = ops::counted_rows(labels, -100).item();
      const Tensor loss = ops::mul_scalar(model->loss_sum(stored.inputs(), labels), 1.0 / count);
      CHECK(std::abs(detached(loss).item() - stored.json["loss_f64"].get<double>()) <= 1e-5);
      backward(loss);
      const double gradients = gradient_difference(*model, stored);
      CHECK(hidden <= 1e-5);
      CHECK(logits <= 1e-5);
      CHECK(gradients <= 2e-5);
      table_line(fmt::format("{} | {:.1e} | {:.1e} | {:.1e}", name, hidden, logits, gradients));
    }
  }
}

TEST_CASE("base models of encoders give hidden states and what the pooler makes of them") {
  const NoGrad no_grad;
  for (const std::string name : {"bert_base", "vit_base"}) {
    DYNAMIC_SECTION(name) {
      const Stored stored(name);
      const auto model = encoders::encoder_from_folder(stored.folder);
      const Tensor mask = stored.find("attention_mask");
      const Tensors out = (*model)(stored.inputs());
      REQUIRE(out.size() == 2);
      CHECK(largest_difference(of_shown(out[0], mask),
                               of_shown(stored.find("last_hidden_state"), mask)) <= 1e-5);
      CHECK(largest_difference(out[1], stored.find("pooler_output")) <= 1e-5);
    }
  }
}

TEST_CASE("embeddings of rows are means of shown tokens, or first tokens") {
  const NoGrad no_grad;
  const Stored stored("bert_base");
  const auto model = encoders::encoder_from_folder(stored.folder);
  const Tensor hidden = stored.find("last_hidden_state");
  const std::vector<double> states = to_doubles(hidden);
  const std::vector<double> mask = to_doubles(stored.find("attention_mask"));
  const auto rows = static_cast<std::size_t>(hidden.size(0));
  const auto tokens = static_cast<std::size_t>(hidden.size(1));
  const auto dim = static_cast<std::size_t>(hidden.size(2));
  const std::vector<double> means =
      to_doubles(model->embeddings(stored.inputs(), encoders::Pooling::mean));
  const std::vector<double> firsts =
      to_doubles(model->embeddings(stored.inputs(), encoders::Pooling::first));
  for (std::size_t i = 0; i < rows * dim; ++i) {
    const std::size_t row = i / dim;
    double sum = 0;
    double count = 0;
    for (std::size_t t = 0; t < tokens; ++t) {
      sum += mask[row * tokens + t] * states[(row * tokens + t) * dim + i % dim];
      count += mask[row * tokens + t];
    }
    CHECK(std::abs(means[i] - sum / count) <= 1e-5);
    CHECK(std::abs(firsts[i] - states[row * tokens * dim + i % dim]) <= 1e-5);
  }
}

namespace {

/// The rows and labels of a step: of images those that are stored, of texts windows of tokens.
class Rows {
 public:
  explicit Rows(const Stored& stored)
      : stored_(stored), images_(stored.file.contains("pixel_values")) {
    if (!images_) {
      std::ifstream file(data + "tokens.npy", std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      const std::size_t begin = bytes.find('\n') + 1;  // of u16
      for (std::size_t i = begin; i + 1 < bytes.size(); i += 2) {
        tokens_.push_back(static_cast<unsigned char>(bytes[i]) +
                          256 * static_cast<unsigned char>(bytes[i + 1]));
      }
      REQUIRE(tokens_.size() == 5761);
    }
  }

  std::int64_t batch() const { return images_ ? 4 : stored_.json["data"]["batch"].get<int>(); }

  /// Inputs and labels.
  std::pair<Tensors, Tensor> of(std::int64_t step) const {
    if (images_) {
      return {stored_.inputs(), stored_.labels()};
    }
    const std::int64_t length = stored_.json["data"]["seq_len"];
    const std::int64_t windows = (std::ssize(tokens_) - 1) / length;
    std::vector<std::int64_t> ids;
    std::vector<std::int64_t> labels;
    for (std::int64_t i = 0; i < batch(); ++i) {
      const auto at = tokens_.begin() + (step * batch() + i) % windows * length;
      ids.insert(ids.end(), at, at + length);
      labels.push_back(at[length] % 3);
    }
    return {{from_values(std::span<const std::int64_t>(ids), {batch(), length})},
            from_values(std::span<const std::int64_t>(labels), {batch()})};
  }

 private:
  const Stored& stored_;
  bool images_;
  std::vector<std::int64_t> tokens_;
};

plugin::Host& shipped_styles() {
  static plugin::Host host(
      {.paths = {TESSERA_SHIPPED_PLUGINS}, .environment = false, .standard_places = false});
  return host;
}

/// How many ranks share the batch, and the heads of each of them.
struct RankCounts {
  int shards = 1;
  int heads = 1;
};

parallel::FullyShardOptions options_of(const RankCounts& layout, nn::Module& model) {
  const auto is_gate = [](const auto& one) { return one.first.ends_with("gate_proj.weight"); };
  const bool gated = std::ranges::any_of(nn::named_parameters(model), is_gate);
  parallel::FullyShardOptions options{.axis = {"shard"}, .groups = {"model.layers.*", "."}};
  if (layout.heads > 1) {
    options.styles = {{"ColwiseParallel",
                       "tensor",
                       {"**.{q,k,v}_proj", gated ? "**.{gate,up}_proj" : "**.up_proj"},
                       "{}",
                       "columns"},
                      {"RowwiseParallel", "tensor", {"**.{o,down}_proj"}, "{}", "rows"}};
  }
  return options;
}

struct StepDifferences {
  double losses = 0;
  double norms = 0;
};

/// 20 steps from the folder, on ranks that are threads.
StepDifferences trained(const Stored& stored, const RankCounts& layout, bool recompute) {
  const Rows rows(stored);
  StepDifferences most;
  std::mutex mutex;
  testing::on_ranks(layout.shards * layout.heads, [&](int) {
    const EncoderFolder folder(stored.folder);
    const auto model = folder.build();
    model->set_activation_checkpointing(recompute);
    const DeviceMesh mesh =
        layout.heads > 1 ? DeviceMesh::make({"shard", "tensor"}, {layout.shards, layout.heads})
                         : DeviceMesh::make({"shard"}, {layout.shards});
    parallel::FullySharded sharded(*model, mesh, options_of(layout, *model), shipped_styles());
    sharded.materialize();
    folder.load(*model);
    Training training(*model, sharded.plan(), optim::adamw(nn::all_parameters(*model)),
                      {.kind = optim::ScheduleKind::constant, .lr = 1e-3}, 1.0);
    StepDifferences mine;
    for (std::size_t step = 0; step < stored.json["losses"].size(); ++step) {
      const auto [inputs, labels] = rows.of(static_cast<std::int64_t>(step));
      const StepResult result = training.step(
          {.rows = rows.batch(), .weight = static_cast<double>(rows.batch())},
          [&](const BatchPart& part) {
            const auto own = [&](const Tensor& x) {
              return from_local(ops::contiguous(ops::narrow(x, 0, part.first, part.rows)),
                                sharded.batch_layout());
            };
            Tensors given;
            for (const Tensor& x : inputs) {
              given.push_back(own(x));
            }
            return model->loss_sum(given, own(labels));
          });
      mine.losses = std::max(mine.losses,
                             std::abs(result.loss - stored.json["losses_f64"][step].get<double>()));
      mine.norms =
          std::max(mine.norms,
                   std::abs(result.grad_norm - stored.json["grad_norms_f64"][step].get<double>()));
    }
    const std::lock_guard lock(mutex);
    most.losses = std::max(most.losses, mine.losses);
    most.norms = std::max(most.norms, mine.norms);
  });
  return most;
}

void follows(const std::string& name, const RankCounts& layout, bool recompute = false) {
  const Stored stored(name);
  double rounding = 0;  // PyTorch's own, of a norm
  for (std::size_t i = 0; i < stored.json["grad_norms"].size(); ++i) {
    rounding = std::max(rounding, std::abs(stored.json["grad_norms"][i].get<double>() -
                                           stored.json["grad_norms_f64"][i].get<double>()));
  }
  const StepDifferences found = trained(stored, layout, recompute);
  INFO(name << " on " << layout.shards << " x " << layout.heads << " ranks: losses " << found.losses
            << ", norms " << found.norms);
  table_line(fmt::format("{} | {} x {} | {:.1e} | {:.1e}", name, layout.shards, layout.heads,
                         found.losses, found.norms));
  CHECK(found.losses <= 2e-5);
  CHECK(found.norms <= 2e-5 + rounding);
}

}  // namespace

TEST_CASE("encoders follow 20 steps of transformers on one rank and fully sharded") {
  for (const std::string name : {"bert", "modernbert", "vit"}) {
    follows(name, {.shards = 1});
    follows(name, {.shards = 2});
  }
}

TEST_CASE("encoders follow 20 steps of transformers with split heads") {
  for (const std::string name : {"bert", "modernbert", "vit"}) {
    follows(name, {.shards = 2, .heads = 2});
  }
}

TEST_CASE("encoders whose blocks compute their activations again follow the same steps") {
  follows("modernbert", {.shards = 1}, true);
}
