// text_classifier: fine-tunes an encoder of a folder of transformers (BERT, ModernBERT) as a
// classifier of texts, fully sharded, and writes it as such a folder. Its texts are lines of a
// label, a tab and a text. docs/encoders.md explains it.
//
//   text_classifier FOLDER TEXTS OUTPUT_FOLDER [RANKS] [STEPS]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

import tessera;

using namespace tessera;

namespace {

constexpr std::int64_t batch = 8;
constexpr std::int64_t longest = 128;

void read_lines(const std::string& path, std::vector<std::string>& labels,
                std::vector<std::string>& texts) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t tab = line.find('\t');
    if (tab == std::string::npos) {
      throw Error(path + ": a line is not a label, a tab and a text: " + line, ErrorKind::input);
    }
    labels.push_back(line.substr(0, tab));
    texts.push_back(line.substr(tab + 1));
  }
}

int run(const std::string& from, const std::string& file, const std::string& output, int ranks,
        std::int64_t steps) {
  std::vector<std::string> labels;
  std::vector<std::string> texts;
  read_lines(file, labels, texts);
  const std::set<std::string> different(labels.begin(), labels.end());
  encoders::EncoderFolder folder(from);
  folder.set_labels({different.begin(), different.end()});
  const hub::ModelTokenizer tokenizer = hub::folder_tokenizer(from, "{}", from);
  const encoders::TokenRows all = encoders::token_rows(
      *tokenizer.opened.tokenizer, texts, std::min(longest, folder.config().shape.max_positions),
      folder.config().shape.vocab);
  std::vector<std::int64_t> numbers;
  for (const std::string& label : labels) {
    numbers.push_back(std::ranges::find(folder.config().labels, label) -
                      folder.config().labels.begin());
  }
  const std::int64_t count = all.ids.size(0);
  const Tensor targets = from_values(std::span<const std::int64_t>(numbers), {count});

  runs::RunSpec spec;
  spec.train.steps = steps;
  spec.train.batch = batch;
  spec.optimizer.lr = 1e-3;
  spec.mesh.axes = {"shard"};
  spec.mesh.shape = {ranks};
  runs::fully_shard(spec, {.groups = {"model.layers.*", "."}});
  spec.checkpoint.folder = output + "/checkpoints";

  runs::TaskFunctions task;
  task.model = [&] { return folder.build(); };
  task.initialize = [&](nn::Module& model) {
    nn::initialize(model);  // the new head
    folder.load(dynamic_cast<encoders::EncoderModel&>(model));
  };
  task.rows = [&](const BatchPart& part) {
    std::vector<std::int64_t> places;
    for (std::int64_t i = 0; i < part.rows; ++i) {
      places.push_back((part.step * batch + part.first + i) % count);
    }
    const Tensor chosen = from_values(std::span<const std::int64_t>(places), {part.rows});
    return Tensors{ops::index_select(all.ids, chosen, 0), ops::index_select(all.mask, chosen, 0),
                   ops::index_select(targets, chosen, 0)};
  };
  task.loss_sum = [](nn::Module& model, const Tensors& rows) {
    return dynamic_cast<encoders::EncoderModel&>(model).loss_sum({rows[0], rows[1]}, rows[2]);
  };
  const int code = runs::train(spec, task);
  if (code != 0) {
    return code;
  }

  const CheckpointReader trained(checkpoint_folder(spec.checkpoint.folder, steps));
  encoders::write_encoder_folder(folder.config(), trained, output + "/model", "model.");
  const NoGrad no_grad;
  const auto model = encoders::encoder_from_folder(output + "/model");
  model->train(false);
  const Tensor told = ops::argmax((*model)(Tensors{all.ids, all.mask})[0], 1);
  const Tensor right = ops::cast(ops::eq(told, targets), DType::f32);
  std::printf("%d texts, %.0f of them told right\n", int(count), ops::sum(right).item());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "text_classifier FOLDER TEXTS OUTPUT_FOLDER [RANKS] [STEPS]\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2], argv[3], argc > 4 ? std::stoi(argv[4]) : 2,
               argc > 5 ? std::stoll(argv[5]) : 60);
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
