module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/json_reading.hpp>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.ggml;
import tessera.tokenize;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.models;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;
import tessera.hub;
import tessera.encoders;
import tessera.app.base;
import tessera.app.config;
import tessera.runs;
import :stored_paths;

namespace tessera::app {
namespace {

namespace fs = std::filesystem;

/// The folder that the run started from; empty: none.
std::string start_folder(const CheckpointReader& reader) {
  return reading_json(reader.path(), [&] {
    const nlohmann::json meta = parse_json(reader.meta());
    return meta.value(nlohmann::json::json_pointer("/config/model/from"), std::string());
  });
}

/// Error (input): the model has rows for tokens that the one it started from, of which an adapter
/// is, does not have.
void check_no_new_tokens(const hub::ModelShape& model, const std::string& from,
                         const std::string& checkpoint) {
  std::error_code error;
  if (from.empty() || !fs::exists(fs::path(from) / "config.json", error)) {
    return;
  }
  if (const std::int64_t before = hub::read_model_folder(from).vocab; before < model.vocab) {
    fail_input({.thing = checkpoint,
                .wrong = fmt::format("its model has {} tokens, and that of {}, which the adapter "
                                     "is for, has {}",
                                     model.vocab, from, before),
                .advice = "export the whole model, without --adapter"});
  }
}

/// What an export has its further files from.
struct ExportSource {
  std::string path;  // of the checkpoint, the model folder or the GGUF file
  std::string
      folder;  // with the files of the tokenizer, where it has none of its own; may be empty
  std::function<tokenize::OpenedTokenizer()> tokenizer;  // null: there is none
  std::string without = "the folder has none";           // why there may be no tokenizer
};

[[noreturn]] void no_tokenizer(const std::string& checkpoint, const std::string& why) {
  fail_input({.thing = checkpoint,
              .wrong = "there is no tokenizer to export with the model: " + why,
              .advice = "add --no-tokenizer to export the model alone"});
}

/// The tokenizer of the run; of a run on token ids, that of the GGUF file that it started from.
/// Null: there is none. Error (input): it is gone, or has changed.
tokenize::OpenedTokenizer run_tokenizer(const CheckpointReader& reader) {
  try {
    if (const auto stored = hub::stored_tokenizer(reader.meta(), reader.path())) {
      return stored->opened;
    }
  } catch (const Error& error) {
    no_tokenizer(reader.path(), error.fields().wrong);
  }
  const std::string start = start_folder(reader);
  const std::string file = start.empty() ? std::string() : hub::gguf_file(start);
  return file.empty() || hub::own_tokenizer_file(file).empty() ? tokenize::OpenedTokenizer()
                                                               : tokenize::open_tokenizer(file);
}

ExportSource source_of(const CheckpointReader& reader) {
  return {.path = reader.path(),
          .folder = start_folder(reader),
          .tokenizer = [&reader] { return run_tokenizer(reader); },
          .without = "the model was trained on token ids"};
}

/// Of a model folder or a GGUF file.
ExportSource source_of(const std::string& path) {
  return {.path = path, .folder = path, .tokenizer = [path] {
            const std::string gguf = hub::gguf_file(path);
            const std::string file = gguf.empty() ? path : gguf;
            return hub::own_tokenizer_file(file).empty() ? tokenize::OpenedTokenizer()
                                                         : tokenize::open_tokenizer(file);
          }};
}

/// Writes the tokenizer's files, as transformers needs them, into a folder: those of the
/// tokenizer's folder or of the one that the run started from, or what another kind is as
/// tokenizer.json. Returns what to say of it.
std::string carry_tokenizer(const ExportSource& source, const fs::path& to) {
  const tokenize::OpenedTokenizer opened = source.tokenizer();
  const fs::path file = opened.kind == "gguf" ? std::string() : opened.file;
  const fs::path from = opened.kind == "gguf" ? fs::path()
                        : file.empty()        ? fs::path(source.folder)
                                              : file.parent_path();
  std::string said;
  bool complete = false;
  const auto copy = [&](const std::string& name, bool is_tokenizer) {
    std::error_code error;
    if (!from.empty() && !is_gguf(from / name) && fs::is_regular_file(from / name, error) &&
        !fs::exists(to / name, error)) {
      fs::copy_file(from / name, to / name);
      said += ", " + name;
      complete = complete || is_tokenizer;
    }
  };
  constexpr std::array<std::string_view, 5> complete_ones = {
      "tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt"};
  for (const std::string_view name : hub::tokenizer_file_names()) {
    if (name != "generation_config.json") {  // the model's own is written
      copy(std::string(name), std::ranges::find(complete_ones, name) != complete_ones.end());
    }
  }
  copy(file.filename().string(), true);
  if (complete) {
    return said;
  }
  if (!opened.tokenizer) {
    no_tokenizer(source.path, source.without);
  }
  for (const auto& [name, text] : tokenize::hub_files(opened)) {
    write_text((to / name).string(), text);
    said += ", " + name;
    complete = true;
  }
  if (!complete) {
    no_tokenizer(source.path, fmt::format("tokenizers of the kind {} have no files", opened.kind));
  }
  return said;
}

/// The tokenizer of the run with its settings; null: there is none, or it is gone.
std::shared_ptr<const hub::ModelTokenizer> run_texts(const CheckpointReader& reader) {
  try {
    return hub::stored_tokenizer(reader.meta(), reader.path());
  } catch (const Error&) {
    return nullptr;  // the export has no tokenizer, and says so
  }
}

/// Tokens of the run's config that end generated texts are tokens of generation_config.json.
/// Returns what an export cannot have of the run's settings, in words.
std::string carry_settings(const hub::ModelTokenizer& texts, hub::ModelShape& model) {
  std::vector<std::int64_t> ends;
  for (const std::string& token : texts.end_tokens) {
    ends.push_back(texts.opened.tokenizer->id(token).value());
  }
  hub::add_end_tokens(model, ends);
  return texts.template_options == runs::JsonText().text
             ? ""
             : fmt::format(", without the run's template_options {}", texts.template_options);
}

/// GGUF's name of a type of weights; empty: it has none.
std::string gguf_type(const std::string& dtype) {
  static const std::map<std::string, std::string> names = {
      {"float32", "F32"}, {"float16", "F16"}, {"bfloat16", "BF16"},
      {"q8_0", "Q8_0"},   {"q4_0", "Q4_0"},   {"q4_k_m", "Q4_K_M"}};
  const auto found = names.find(dtype);
  return found == names.end() ? "" : found->second;
}

/// Error (input): the type of the weights is none of the format, or --adapter is for another one.
void check_form(const ExportArguments& arguments, const std::string& dtype) {
  if (arguments.gguf && arguments.adapter) {
    fail_input(
        {.wrong = "--adapter writes PEFT's format, not GGUF", .advice = "remove one of the two"});
  }
  if (arguments.gguf && gguf_type(dtype).empty()) {
    fail_input({.thing = "--dtype",
                .wrong = fmt::format("{} is not written into GGUF files", dtype),
                .expected = "float32, float16, bfloat16, q8_0, q4_0 or q4_k_m"});
  }
  const std::string type = gguf_type(dtype);
  if (!arguments.gguf && type.starts_with("Q")) {
    fail_input({.thing = "--dtype",
                .wrong = fmt::format("{} is a type of GGUF files", dtype),
                .advice = "add --format gguf"});
  }
}

/// Says in the folder what was trained on what.
void write_card(const CheckpointReader& reader, const ExportArguments& arguments,
                const fs::path& folder, const std::string& what) {
  const std::string name = fs::absolute(arguments.folder).lexically_normal().filename().string();
  write_text((folder / "README.md").string(), runs::model_card(reader, name, what));
}

/// After all other files. Returns what to say of it.
std::string write_record(const CheckpointReader& reader, const ExportArguments& arguments,
                         const fs::path& folder) {
  const std::string why_not = runs::write_export_record(
      reader, folder.string(),
      {.format = arguments.adapter ? "adapter"
                 : arguments.gguf  ? "gguf"
                                   : "transformers",
       .dtype = arguments.dtype,
       .tokenizer = !arguments.no_tokenizer,
       .max_file_bytes = static_cast<std::int64_t>(arguments.max_file_bytes)});
  return why_not.empty() ? fmt::format(", {}", runs::record_file)
                         : fmt::format(", without a record of the run ({})", why_not);
}

/// The files with which readers begin, one of each form, are the last of an export in a store.
void write_export(const ExportArguments& arguments,
                  const std::function<void(const fs::path& folder)>& write) {
  write_place(arguments.folder, {"config.json", "adapter_config.json", "model.gguf"}, write);
}

std::string text_of(const hub::ModelShape& model) {
  return fmt::format("{}, {} parameters", model.family,
                     format_count(static_cast<double>(model.parameters())));
}

std::string export_adapter(const ExportArguments& arguments, const CheckpointReader& reader,
                           const hub::Updates& updates, const hub::ModelShape& model) {
  if (updates.empty()) {
    fail_input({.thing = arguments.checkpoint,
                .wrong = "its model has no low-rank updates (LoRA)",
                .advice = "export the whole model, without --adapter"});
  }
  hub::check_takes_adapters(hub::family_of(model), hub::sizes_of(model), hub::names_of(updates),
                            arguments.checkpoint);
  check_no_new_tokens(model, start_folder(reader), arguments.checkpoint);
  const std::string dtype = arguments.dtype.empty() ? "float32" : arguments.dtype;
  std::size_t tensors = 0;
  std::string record;
  write_export(arguments, [&](const fs::path& folder) {
    const std::string base = start_folder(reader);
    tensors =
        hub::write_peft(reader, updates, "model.", base, hub::type_named(dtype), folder.string());
    write_card(reader, arguments, folder, "An adapter (LoRA) of a " + text_of(model));
    record = write_record(reader, arguments, folder);
  });
  return fmt::format(
      "{} tensors of the updates of {} layers as {}, adapter_config.json and README.md{}, written "
      "to {}\n",
      tensors, updates.size(), dtype, record, arguments.folder);
}

struct ExportedFiles {
  std::size_t tensors = 0;
  std::string with = {};  // the further files, in words
};

ExportedFiles write_hub(const ExportSource& source, const hub::ModelShape& model,
                        const TensorSource& named, const ExportArguments& arguments,
                        const fs::path& folder) {
  write_text((folder / "config.json").string(), hub::hub_config(model));
  write_text((folder / "generation_config.json").string(), hub::generation_config(model));
  const std::size_t tensors =
      checkpoint_format("safetensors")
          .write(SelectedTensors(named, {.dtype = hub::type_named(model.dtype)}), folder.string(),
                 {.max_file_bytes = arguments.max_file_bytes})
          .tensors;
  return {tensors, ", config.json and generation_config.json" +
                       (arguments.no_tokenizer ? "" : carry_tokenizer(source, folder))};
}

/// The tokenizer as fields of a GGUF file.
std::string tokenizer_fields(const ExportSource& source, const hub::ModelShape& model) {
  tokenize::OpenedTokenizer opened = source.tokenizer();
  std::error_code ignored;
  if (!opened.tokenizer && fs::is_directory(source.folder, ignored) &&
      !hub::own_tokenizer_file(source.folder).empty()) {
    opened = tokenize::open_tokenizer(source.folder);
  }
  if (!opened.tokenizer) {
    no_tokenizer(source.path, source.without);
  }
  return tokenize::gguf_fields(opened, model.vocab);
}

/// Error (input): a reader of the GGUF file would compute another model, because its architecture
/// has no field for a property.
void check_same_model(const hub::ModelShape& model, const hub::ModelShape& read,
                      const std::string& path) {
  std::vector<std::string> different;
  for (const auto& [name, value] : model.values) {
    const auto found = read.values.find(name);
    const models::ModelValue none = std::visit(
        [](const auto& own) { return models::ModelValue(std::decay_t<decltype(own)>()); }, value);
    const models::ModelValue& other = found == read.values.end() ? none : found->second;
    const auto* const number = std::get_if<double>(&value);
    const auto* const read_number = std::get_if<double>(&other);
    const bool same = number != nullptr && read_number != nullptr
                          ? std::abs(*number - *read_number) <= 1e-6 * std::abs(*number)
                          : value == other;
    if (!same) {
      different.push_back(name);
    }
  }
  if (!different.empty() || model.vocab != read.vocab) {
    fail_input({.thing = path,
                .wrong = fmt::format("GGUF has no fields for what this model has in model.{}",
                                     fmt::join(different, ", model.")),
                .advice = "export it for transformers"});
  }
}

ExportedFiles write_gguf(const ExportSource& source, const hub::ModelShape& model,
                         const TensorSource& named, const ExportArguments& arguments,
                         const fs::path& folder) {
  hub::ModelShape plain = hub::gguf_shape(model);
  plain.dtype = "float32";  // the tensors have their own
  const std::string config = hub::hub_config(plain);
  const auto tensors = hub::gguf_tensors(
      named, {.config = config,
              .type = gguf_type(model.dtype),
              .tokenizer = arguments.no_tokenizer ? std::string() : tokenizer_fields(source, model),
              .name = fs::path(source.folder).stem().string()});
  check_same_model(hub::parse_hub_config(config, source.path),
                   hub::parse_hub_config(hub::gguf_config(*tensors), source.path), source.path);
  return {.tensors = checkpoint_format("gguf").write(*tensors, folder.string(), {}).tensors,
          .with = arguments.no_tokenizer ? " without a tokenizer" : ", with the tokenizer,"};
}

}  // namespace

int run_checkpoint_verify(const std::string& path) {
  std::vector<std::string> folders = checkpoints_in(path);
  std::error_code ignored;
  if (folders.empty() || fs::exists(fs::path(path) / "checkpoint.json", ignored)) {
    folders = {path};
  }
  std::string damage;
  for (const std::string& folder : folders) {
    std::vector<std::string> problems;
    std::uint64_t bytes = 0;
    try {
      const CheckpointReader reader(folder);
      bytes = reader.stored_bytes();
      for (const std::string& problem : reader.verify()) {
        problems.push_back(fmt::format("{}: {}", folder, problem));
      }
    } catch (const Error& error) {
      problems = {error.what()};
    }
    if (problems.empty()) {
      fmt::print("{}: whole, {} compared\n", folder, format_bytes(bytes));
    }
    for (const std::string& problem : problems) {
      damage += "\n  " + problem;
    }
  }
  if (!damage.empty()) {
    fail_input({.thing = path,
                .wrong = "damaged",
                .advice = fmt::format("use another checkpoint{}", damage)});
  }
  return 0;
}

namespace {

/// How a checkpoint's model that tells classes becomes a folder of transformers.
struct ClassFolder {
  std::string what;    // "an encoder (bert)"
  std::string& dtype;  // of the config that `write` writes
  std::size_t labels = 0;
  std::function<void(const TensorSource&, const std::string&)> write;
};

std::string export_classes(const ExportArguments& arguments, const hub::WholeCheckpoint& whole,
                           const ClassFolder& model) {
  const CheckpointReader& reader = whole.reader();
  if (arguments.adapter || arguments.gguf) {
    fail_input({.thing = reader.path(),
                .wrong = fmt::format("its model is {}, which is exported as a folder of "
                                     "transformers only",
                                     model.what),
                .advice = arguments.adapter ? "leave out --adapter" : "leave out --format"});
  }
  if (!arguments.dtype.empty()) {
    model.dtype = arguments.dtype;
  }
  const hub::Updates updates = hub::stored_updates(reader.meta(), reader.path());
  const hub::MergedWeights merged(whole.tensors(), updates, "model.");
  std::string with;
  write_export(arguments, [&](const fs::path& folder) {
    model.write(merged, folder.string());
    write_card(reader, arguments, folder, model.what);
    const std::string images = encoders::stored_image_processor(reader.meta());
    if (!images.empty()) {
      write_text((folder / "preprocessor_config.json").string(), images);
      with = ", preprocessor_config.json";
    } else {
      with = arguments.no_tokenizer ? "" : carry_tokenizer(source_of(reader), folder);
    }
    with += write_record(reader, arguments, folder);
  });
  return fmt::format("{} with {} as {}, config.json{} written to {}\n", model.what,
                     count_text(model.labels, "label"),
                     model.dtype.empty() ? "float32" : model.dtype, with, arguments.folder);
}

/// Exports a model that tells classes, and says what there is to say; empty: it is another one.
std::string exported_classes(const ExportArguments& arguments, const hub::WholeCheckpoint& whole) {
  const CheckpointReader& reader = whole.reader();
  if (auto encoder = encoders::stored_encoder(reader.meta(), reader.path())) {
    return export_classes(arguments, whole,
                          {.what = fmt::format("an encoder ({})", encoder->family),
                           .dtype = encoder->dtype,
                           .labels = encoder->labels.size(),
                           .write = [&](const TensorSource& tensors, const std::string& folder) {
                             encoders::write_encoder_folder(*encoder, tensors, folder, "model.");
                           }});
  }
  if (auto decoder = hub::stored_classifier(reader.meta(), reader.path())) {
    return export_classes(arguments, whole,
                          {.what = fmt::format("a decoder ({})", decoder->model.family),
                           .dtype = decoder->model.dtype,
                           .labels = decoder->labels.size(),
                           .write = [&](const TensorSource& tensors, const std::string& folder) {
                             hub::write_classifier_folder(*decoder, tensors, folder, "model.");
                           }});
  }
  return "";
}

}  // namespace

namespace {

/// A model folder or a GGUF file in another form.
std::string export_folder(const ExportArguments& arguments) {
  const std::string& path = arguments.checkpoint;
  if (arguments.adapter || !arguments.base.empty()) {
    fail_input({.thing = path,
                .wrong = arguments.adapter ? "it has no low-rank updates of its own"
                                           : "it has all its weights, and no base",
                .advice = arguments.adapter ? "--merge FOLDER merges an adapter with it"
                                            : "leave out --base"});
  }
  hub::ModelShape model = hub::read_model_folder(path);
  const hub::HubNames names = hub::names_of(hub::family_of(model), hub::sizes_of(model));
  const OpenedTensors opened = hub::open_hub_tensors(path);
  std::unique_ptr<hub::AdapterWeights> adapted;
  if (!arguments.merged.empty()) {
    adapted = std::make_unique<hub::AdapterWeights>(*opened.source, names, arguments.merged);
  }
  const hub::HubWeights weights(adapted ? *adapted : *opened.source, names);
  hub::check_stored_sizes(model, weights, "", path);
  model.dtype = !arguments.dtype.empty() ? arguments.dtype
                : model.dtype.empty()    ? "float32"
                                         : model.dtype;
  check_form(arguments, model.dtype);
  const hub::HubExport named(weights, "", names);
  const ExportSource source = source_of(path);
  ExportedFiles written;
  write_export(arguments, [&](const fs::path& folder) {
    written = arguments.gguf ? write_gguf(source, model, named, arguments, folder)
                             : write_hub(source, model, named, arguments, folder);
  });
  return fmt::format(
      "{} as {}{}{}{} written to {}\n", count_text(written.tensors, "tensor"), model.dtype,
      adapted ? fmt::format(" (with the updates of {})", arguments.merged) : "", written.with,
      weights.further().empty() ? ""
                                : fmt::format(", without {} that predict further tokens",
                                              count_text(weights.further().size(), "tensor")),
      arguments.folder);
}

}  // namespace

std::string export_checkpoint(const ExportArguments& arguments) {
  const std::string& path = arguments.checkpoint;
  std::error_code ignored;
  if (fs::exists(fs::path(path) / "config.json", ignored) || !hub::gguf_file(path).empty()) {
    return export_folder(arguments);
  }
  if (!arguments.merged.empty()) {
    fail_input({.thing = path,
                .wrong = "a checkpoint takes no adapter",
                .advice = "export it first, and merge the adapter with the folder"});
  }
  // An adapter has nothing of the base.
  const hub::WholeCheckpoint whole(path, OpenFiles::all,
                                   arguments.adapter ? hub::BaseUse::names : hub::BaseUse::values,
                                   arguments.base);
  const CheckpointReader& reader = whole.reader();
  if (std::string said = exported_classes(arguments, whole); !said.empty()) {
    return said;
  }
  hub::ModelShape model = hub::stored_model(reader.meta(), path);
  const hub::Updates updates = hub::stored_updates(reader.meta(), path);
  const hub::MergedWeights merged(whole.tensors(), updates, "model.");
  hub::check_stored_sizes(model, merged, "model.", path);
  if (!arguments.dtype.empty()) {
    model.dtype = arguments.dtype;
  }
  check_form(arguments, model.dtype);
  if (arguments.adapter) {
    return export_adapter(arguments, reader, updates, model);
  }
  ExportedFiles written;
  write_export(arguments, [&](const fs::path& folder) {
    const hub::HubExport named(merged, "model.", hub::family_of(model), hub::sizes_of(model));
    const auto texts = run_texts(reader);
    const std::string without = texts ? carry_settings(*texts, model) : "";
    const ExportSource source = source_of(reader);
    written = arguments.gguf ? write_gguf(source, model, named, arguments, folder)
                             : write_hub(source, model, named, arguments, folder);
    if (!arguments.gguf) {
      write_card(reader, arguments, folder, text_of(model));
      written.with += ", README.md";
    }
    if (texts && texts->own_template && !arguments.gguf) {
      write_text((folder / "chat_template.jinja").string(), texts->opened.chat_template);
    }
    if (written.with.ends_with(',')) {
      written.with.pop_back();  // the list goes on
    }
    written.with += write_record(reader, arguments, folder) + without;
  });
  return fmt::format("{} as {}{}{} written to {}\n", count_text(written.tensors, "tensor"),
                     model.dtype,
                     updates.empty() ? ""
                                     : fmt::format(" (the low-rank updates of {} are merged)",
                                                   count_text(updates.size(), "layer")),
                     written.with, arguments.folder);
}

int run_checkpoint_export(const ExportArguments& given) {
  ExportArguments arguments = given;
  InputCopies copies;
  copies.take_unless_checkpoint(arguments.checkpoint);
  copies.take(arguments.base, true);
  copies.take(arguments.merged, true);
  fmt::print("{}", export_checkpoint(arguments));
  return 0;
}

}  // namespace tessera::app
