// Models in GGUF files: what ggml's package wrote from folders of transformers is those folders,
// a run starts from one, and an export is one.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;
import tessera.hub;

using namespace tessera;
using namespace trainer_test;

namespace {

const std::string data = TESSERA_SOURCE_FOLDER "/tests/reference/data/";

std::string folder_of(const std::string& name) { return data + "decoders/" + name; }
std::string file_of(const std::string& name) { return data + "gguf/" + name + ".gguf"; }

/// Largest difference of all tensors, and 1000 where names or shapes differ.
double difference(const TensorSource& a, const TensorSource& b) {
  double largest = 0;
  for (const TensorDifference& d : compare_tensors(a, b)) {
    INFO(d.name << " " << d.problem);
    largest = std::max(largest, d.problem.empty() ? d.max_absolute : 1000.0);
  }
  return largest;
}

/// The sums of the values, of each times its row's number, and of each times its column's, from 1.
std::vector<double> weighted_sums(const Tensor& tensor) {
  const std::vector<double> values = to_doubles(tensor);
  const auto columns = static_cast<std::size_t>(tensor.numel() / tensor.size(0));
  std::vector<double> sums(3);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t row = i / columns + 1;
    sums[0] += values[i];
    sums[1] += values[i] * static_cast<double>(row);
    sums[2] += values[i] * static_cast<double>(i % columns + 1);
  }
  return sums;
}

/// Some rows and columns of a tensor, as a rank asks for them.
void has_boxes(const TensorSource& source, const std::string& name) {
  const Tensor whole = source.read(name);
  for (int dim = 0; dim < whole.dims(); ++dim) {
    for (const std::int64_t begin :
         {std::min<std::int64_t>(1, whole.size(dim) - 1), whole.size(dim) / 2}) {
      LocalPart box{Dims::filled(whole.dims(), 0), whole.shape()};
      box.offset[dim] = begin;
      box.shape[dim] = (whole.size(dim) - begin) / 2 + 1;
      const Tensor part = empty(box.shape);
      source.read(name, box, part);
      INFO(name << " from " << to_string(box.offset) << ", " << to_string(box.shape));
      CHECK(to_doubles(part) ==
            to_doubles(ops::narrow(whole, dim, box.offset[dim], box.shape[dim])));
    }
  }
}

/// Token ids below 101 as numpy.save writes them.
std::string npy_file(int count) {
  std::string header =
      "{'descr': '<u2', 'fortran_order': False, 'shape': (" + std::to_string(count) + ",), }";
  header.resize(117, ' ');
  std::string bytes = "\x93NUMPY" + std::string("\x01\x00\x76\x00", 4) + header + "\n";
  for (int i = 0; i < count; ++i) {
    const auto id = static_cast<std::uint16_t>(i * 7 % 101);
    bytes.append(reinterpret_cast<const char*>(&id), sizeof id);
  }
  return bytes;
}

/// The file with other fields.
class WithFields : public TensorSource {
 public:
  WithFields(const TensorSource& from, const nlohmann::json& changes)
      : TensorSource(from.path()), from_(from) {
    tensors_ = from.tensors();
    nlohmann::json meta = nlohmann::json::parse(from.meta());
    for (const auto& [name, field] : changes.items()) {
      if (field.is_null()) {
        meta["gguf"].erase(name);
      } else {
        meta["gguf"][name] = field;
      }
    }
    meta_ = meta.dump();
  }
  std::uint64_t bytes_read() const override { return 0; }
  std::string stored_type(const std::string& name) const override {
    return from_.stored_type(name);
  }
  /// This tensor's values have the other sign.
  void negate(const std::string& name) { negated_ = name; }

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override {
    from_.read(name, box, into);
    if (name == negated_) {
      ops::copy_(into, ops::neg(into));
    }
  }
  const TensorSource& from_;
  std::string negated_;
};

/// A folder of data/ as the content of a GGUF file. The result keeps the folder.
struct FamilyFile {
  OpenedTensors folder;
  hub::ModelShape shape;
  std::unique_ptr<TensorSource> written;
};
FamilyFile family_file(const std::string& name) {
  FamilyFile file;
  file.folder = hub::open_hub_tensors(data + name);
  file.shape = hub::gguf_shape(hub::read_model_folder(data + name));
  file.written = hub::gguf_tensors(*file.folder.source, {.config = hub::hub_config(file.shape)});
  return file;
}

}  // namespace

TEST_CASE("a GGUF file is the model of the folder that it was made of") {
  const NoGrad no_grad;
  for (const std::string name : {"llama3", "qwen3", "phi3", "gemma2"}) {
    INFO(name);
    hub::ModelShape expected = hub::read_model_folder(folder_of(name));
    const hub::ModelShape shape = hub::read_model_folder(file_of(name));
    CHECK(shape.eos == expected.eos);
    CHECK(shape.family == expected.family);
    CHECK(shape.max_positions == expected.max_positions);
    if (name == "gemma2") {
      expected.values["score_dim"] = 10.0;  // ggml's programs divide by the width of a head
    }
    CHECK(shape.values == expected.values);
    const OpenedTensors folder = hub::open_hub_tensors(folder_of(name));
    const OpenedTensors file = hub::open_hub_tensors(file_of(name));
    CHECK(folder.format == "safetensors");
    // Gemma's norms are stored with 1 added, which rounds them.
    CHECK(difference(*file.source, *folder.source) <= (name == "gemma2" ? 1e-7 : 0));
    for (const auto& [tensor, info] : file.source->tensors()) {
      has_boxes(*file.source, tensor);
    }
  }
}

TEST_CASE("a folder goes out as the GGUF file that ggml's package writes of it") {
  const NoGrad no_grad;
  const Folder out;
  for (const std::string name : {"llama3", "qwen3", "phi3", "gemma2"}) {
    INFO(name);
    const OpenedTensors folder = hub::open_hub_tensors(folder_of(name));
    const std::string config = hub::hub_config(hub::read_model_folder(folder_of(name)));
    const auto tensors = hub::gguf_tensors(*folder.source, {.config = config});
    const std::string to = (out.path() / name).string();
    checkpoint_format("gguf").write(*tensors, to, {});
    const OpenedTensors written = open_tensors(to);
    const OpenedTensors expected = open_tensors(file_of(name));
    CHECK(difference(*written.source, *expected.source) == 0);
    // In fewer bits, only matrices; rows of 40 are no whole blocks of 32.
    const auto quantized = hub::gguf_tensors(*folder.source, {.config = config, .type = "Q8_0"});
    CHECK(quantized->stored_type("output_norm.weight") == "F32");
    CHECK(quantized->stored_type("token_embd.weight") == "F16");
  }
}

TEST_CASE("a model that GGUF cannot describe is refused, and so is a file that is not supported") {
  const OpenedTensors file = open_tensors(file_of("llama3"));
  const auto problem = [&](const std::string& text) {
    return input_error([&] { hub::read_model_folder(text); });
  };
  has(problem(data + "gguf/types.gguf"), "field 'general.architecture': 'none' is not supported");
  has(problem(data + "gguf/sentencepiece.gguf"), "field 'llama.attention.head_count': is missing");
  const auto changed = [&](const std::string& name, const nlohmann::json& field) {
    const WithFields source(*file.source, {{name, field}});
    return input_error([&] { hub::gguf_config(source); });
  };
  const auto number = [](double value) {
    return nlohmann::json{{"type", "f32"}, {"value", value}};
  };
  CHECK(changed("llama.vocab_size", number(101)).empty());
  has(changed("llama.expert_shared_count", number(8)),
      "its fields llama.expert_shared_count are not supported: this program would compute another "
      "model");
  has(changed("split.count", number(3)), "it is one of 3 parts of a model");
  has(changed("llama.block_count", nullptr), "field 'llama.block_count': is missing");
  has(changed("llama.block_count", number(1.5)), "it is not a size (got 1.5)");
  has(changed("llama.attention.head_count", number(0)), "is not positive");
  has(changed("llama.attention.head_count", {{"type", "u32"}, {"values", {4, 4, 2}}}), "a list");
  has(changed("llama.rope.dimension_count", number(6)), "differs from the width of a head");
  has(changed("llama.rope.scaling.original_context_length", number(64)),
      "that are not those of Llama 3");
  // A factor alone divides positions, as in llama.cpp, whatever the name that it has.
  const OpenedTensors plain = open_tensors(file_of("qwen3"));
  const auto scaled = [&](const std::string& name, const nlohmann::json& field) {
    const WithFields source(*plain.source, {{name, field}});
    return nlohmann::json::parse(hub::gguf_config(source)).value("rope_scaling", nlohmann::json());
  };
  const nlohmann::json linear = {{"rope_type", "linear"}, {"factor", 4.0}};
  CHECK(scaled("qwen3.rope.scaling.factor", number(4)) == linear);
  CHECK(scaled("qwen3.rope.scale_linear", number(4)) == linear);
  CHECK(scaled("qwen3.rope.scaling.factor", number(1)).is_null());
  CHECK(scaled("qwen3.rope.scaling.type", {{"type", "text"}, {"value", "none"}}).is_null());
  has(input_error([&] { family_file("families/helium"); }),
      "models of the family helium cannot be written as GGUF");
}

TEST_CASE("a run starts from a GGUF file, and its export is the same model") {
  const Folder folder;
  folder.write("ids.npy", npy_file(2000));
  const auto train = [&](const std::string& from, const std::string& out) {
    folder.write(out + ".toml",
                 "[model]\nfrom = \"" + from +
                     "\"\n[data]\ntokens = [\"ids.npy\"]\nseq_len = 16\n[train]\nsteps = "
                     "2\nbatch = 2\n[log]\nmetrics = \"" +
                     out + ".jsonl\"\n[checkpoint]\nfolder = \"" + out + "\"\n");
    const Result run = run_program("train '" + (folder.path() / (out + ".toml")).string() + "'");
    INFO(run.error << run.out);
    REQUIRE(run.code == 0);
    return "'" + (folder.path() / out / "step-00000002").string() + "'";
  };
  const std::string by_folder = train(folder_of("llama3"), "a");
  const std::string by_file = train(file_of("llama3"), "b");
  CHECK(run_program("checkpoint diff " + by_folder + " " + by_file).code == 0);

  const std::string out = (folder.path() / "out").string();
  const auto written = [&](const std::string& options, const std::string& to) {
    return run_program("checkpoint export " + by_file + " --to '" + out + to + "' " + options);
  };
  for (const char* const format : {"", "--format gguf"}) {
    has(written(format, "0").error,
        "there is no tokenizer to export with the model: the model was trained on token ids; add "
        "--no-tokenizer");
  }
  Result exported = written("--format gguf --dtype float32 --no-tokenizer", "1");
  INFO(exported.error);
  REQUIRE(exported.code == 0);
  has(exported.out, "52 tensors as float32 without a tokenizer");
  REQUIRE(written("--no-tokenizer", "2").code == 0);
  const NoGrad no_grad;
  CHECK(difference(*hub::open_hub_tensors(out + "1").source,
                   *hub::open_hub_tensors(out + "2").source) == 0);
  CHECK(hub::read_model_folder(out + "1").values == hub::read_model_folder(out + "2").values);

  has(written("--format gguf --dtype float64", "3").error,
      "float64 is not written into GGUF files");
  has(written("--dtype q8_0", "3").error, "q8_0 is a type of GGUF files");
  has(written("--format gguf --adapter", "3").error, "--adapter writes PEFT's format");
  const std::string windows = train(folder_of("mistral"), "c");
  has(run_program("checkpoint export " + windows + " --to '" + out +
                  "3' --format gguf --no-tokenizer")
          .error,
      "GGUF has no fields for what this model has in model.window");
}

namespace {

/// Equal values; numbers as those of f32 are.
void check_values(const std::map<std::string, models::ModelValue>& values,
                  const std::map<std::string, models::ModelValue>& expected) {
  REQUIRE(values.size() == expected.size());
  for (const auto& [name, value] : expected) {
    INFO(name);
    if (const auto* const number = std::get_if<double>(&value)) {
      CHECK(std::get<double>(values.at(name)) == Approx(*number).epsilon(1e-6));
    } else {
      CHECK(values.at(name) == value);
    }
  }
}

void check_tensors(const TensorSource& written, const nlohmann::json& expected_tensors) {
  CHECK(written.tensors().size() == expected_tensors.size());
  for (const auto& [tensor, expected] : expected_tensors.items()) {
    INFO(tensor);
    REQUIRE(written.contains(tensor));
    const Tensor values = written.read(tensor);
    CHECK(std::vector<std::int64_t>(values.shape().begin(), values.shape().end()) ==
          expected["shape"].get<std::vector<std::int64_t>>());
    const std::vector<double> sums = weighted_sums(values);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      CHECK(sums[i] == Approx(expected["sums"][i].get<double>()).margin(1e-9));
    }
  }
}

/// Fields of the converter that llama.cpp does not read for this architecture, or that say again
/// what another one says.
const std::set<std::string> needless_fields = {
    "command-r.rope.scaling.type",   "cohere2.rope.scaling.type", "tokenizer.ggml.add_bos_token",
    "granitehybrid.context_length",  // 2^20 where nothing is rotated
    "falcon.context_length",         // 2048
    "qwen35.full_attention_interval"};

void check_fields(const nlohmann::json& fields, const nlohmann::json& expected_fields) {
  for (const auto& [field, expected] : expected_fields.items()) {
    INFO(field);
    if (needless_fields.contains(field)) {
      continue;
    }
    REQUIRE(fields.contains(field));
    const auto& value =
        fields[field].contains("value") ? fields[field]["value"] : fields[field]["values"];
    if (value.is_number_float()) {
      CHECK(static_cast<float>(value.get<double>()) ==
            Approx(expected.get<double>()).epsilon(1e-6));
    } else {
      CHECK(value == expected);
    }
  }
}

}  // namespace

// tests/reference/gguf_families.py: what llama.cpp's converter makes of the same folders.
TEST_CASE("folders of newer families go out as llama.cpp converts them, and come back") {
  const NoGrad no_grad;
  const Folder out;
  const auto all = nlohmann::json::parse(read_file(data + "gguf_families.json"));
  CHECK(all.size() == 44);
  for (const auto& [name, model] : all.items()) {
    INFO(name);
    const FamilyFile file = family_file(name);
    check_tensors(*file.written, model["tensors"]);
    check_fields(nlohmann::json::parse(file.written->meta())["gguf"], model["fields"]);
    const std::string to = (out.path() / std::filesystem::path(name).filename()).string();
    checkpoint_format("gguf").write(*file.written, to, {});
    const hub::ModelShape back = hub::read_model_folder(to);
    CHECK(back.family == file.shape.family);
    check_values(back.values, file.shape.values);
    const OpenedTensors read = hub::open_hub_tensors(to);
    // Norms with their 1, and exponentials, are rounded.
    const models::GgufForm form = models::model_family(file.shape.family).gguf();
    CHECK(difference(*read.source, *file.folder.source) <=
          (form.norm_offset || !form.forms.empty() ? 3e-7 : 0));
    for (const auto& [tensor, info] : read.source->tensors()) {
      has_boxes(*read.source, tensor);
    }
  }
}

TEST_CASE("experts are rounded as llama-quantize does, and their routers are not") {
  const NoGrad no_grad;
  const FamilyFile file = family_file("gguf_families/qwen2_moe");
  const auto rounded = hub::gguf_tensors(*file.folder.source,
                                         {.config = hub::hub_config(file.shape), .type = "Q8_0"});
  CHECK(rounded->stored_type("blk.0.ffn_gate_inp.weight") == "F32");
  CHECK(rounded->stored_type("blk.0.ffn_gate_inp_shexp.weight") == "F32");
  CHECK(rounded->stored_type("blk.0.ffn_gate_exps.weight") == "Q8_0");
  CHECK(rounded->stored_type("blk.0.ffn_down_exps.weight") == "F16");  // rows of 6
}

TEST_CASE("small tensors of recurrent layers are not rounded") {
  const NoGrad no_grad;
  const FamilyFile file = family_file("gguf_families/mamba2");
  const auto rounded = hub::gguf_tensors(*file.folder.source,
                                         {.config = hub::hub_config(file.shape), .type = "Q8_0"});
  CHECK(rounded->stored_type("blk.0.ssm_in.weight") == "Q8_0");
  for (const char* name : {"blk.0.ssm_conv1d.weight", "blk.0.ssm_a", "blk.0.ssm_norm.weight"}) {
    CHECK(rounded->stored_type(name) == "F32");
  }
}

// Rows of 32: Q5_0 is there for Q4_K, Q8_0 for Q6_K. (src/llama-quant.cpp)
TEST_CASE("values of attention have more bits by how many layers attend") {
  const NoGrad no_grad;
  const auto types = [](const std::string& name, const std::vector<std::string>& tensors) {
    const FamilyFile file = family_file("gguf_families/" + name);
    const auto written = hub::gguf_tensors(
        *file.folder.source, {.config = hub::hub_config(file.shape), .type = "Q4_K_M"});
    std::vector<std::string> found;
    for (const std::string& tensor : tensors) {
      found.push_back(written->stored_type(tensor));
    }
    return found;
  };
  // The first of one; the second layer of three would have fewer.
  CHECK(types("lfm2", {"blk.1.attn_v.weight", "blk.1.attn_q.weight"}) ==
        std::vector<std::string>{"Q8_0", "Q5_0"});
  CHECK(types("qwen3_5_text",
              {"blk.0.attn_qkv.weight", "blk.1.attn_v.weight", "blk.2.attn_qkv.weight"}) ==
        std::vector<std::string>{"Q5_0", "Q5_0", "Q8_0"});
}

TEST_CASE("what a file says of its layers is checked") {
  const auto config = [](const TensorSource& file, const nlohmann::json& changes) {
    const WithFields source(file, changes);
    return nlohmann::json::parse(hub::gguf_config(source));
  };
  const auto problem = [&](const TensorSource& file, const nlohmann::json& changes) {
    return input_error([&] { config(file, changes); });
  };
  const auto number = [](double value) {
    return nlohmann::json{{"type", "u32"}, {"value", value}};
  };
  const auto list = [](const nlohmann::json& values) {
    return nlohmann::json{{"type", "i32"}, {"values", values}};
  };
  const FamilyFile lfm = family_file("gguf_families/lfm2");
  const std::string heads = "lfm2.attention.head_count_kv";
  CHECK(config(*lfm.written, {{heads, list({2, 0, 2})}})["layer_types"] ==
        nlohmann::json{"full_attention", "conv", "full_attention"});
  CHECK(config(*lfm.written, {{heads, number(2)}})["layer_types"] ==
        nlohmann::json{"full_attention", "full_attention", "full_attention"});
  has(problem(*lfm.written, {{heads, nullptr}}), "is missing");
  has(problem(*lfm.written, {{heads, list({2, 0})}}),
      "expected a value for each of 3 layers (got 2)");
  has(problem(*lfm.written, {{heads, list({2, 0, 4})}}), "layers differ in it (got 2 and 4)");
  // A decay is -exp of a parameter.
  const NoGrad no_grad;
  const Folder out;
  const FamilyFile mamba = family_file("gguf_families/mamba2");
  WithFields growing(*mamba.written, {});
  growing.negate("blk.1.ssm_a");
  checkpoint_format("gguf").write(growing, (out.path() / "growing").string(), {});
  const OpenedTensors read = hub::open_hub_tensors((out.path() / "growing").string());
  CHECK(read.source->read("backbone.layers.0.mixer.A_log").numel() == 8);
  has(input_error([&] { read.source->read("backbone.layers.1.mixer.A_log"); }),
      "a decay of recurrent layers is -exp of a parameter (expected a number below 0");
  // Where no list says it, each so many-th layer attends.
  const FamilyFile next = family_file("gguf_families/qwen3_next");
  const auto types = [&](const nlohmann::json& interval) {
    return config(*next.written, {{"qwen3next.attention.recurrent_layers", nullptr},
                                  {"qwen3next.full_attention_interval", interval}})["layer_types"];
  };
  const std::string linear = "linear_attention";
  const std::string full = "full_attention";
  CHECK(types(number(2)) == nlohmann::json{linear, full, linear, full});
  CHECK(types(nullptr) == nlohmann::json{linear, linear, linear, full});
  CHECK(types(number(0)) == nlohmann::json{linear, linear, linear, linear});
  has(problem(*next.written,
              {{"qwen3next.attention.recurrent_layers", list({"a", "b", "c", "d"})}}),
      "it is neither a number nor true or false");
  has(problem(*next.written, {{"qwen3next.ssm.inner_size", number(17)}}),
      "it is not the product of linear_num_value_heads and linear_value_head_dim (got 17)");
  CHECK(config(*next.written,
               {{"qwen3next.block_count", number(5)},
                {"qwen3next.attention.recurrent_layers", list({1, 1, 1, 0, 0})},
                {"qwen3next.nextn_predict_layers", number(1)}})["num_hidden_layers"] == 4);
  has(problem(*next.written, {{"qwen3next.nextn_predict_layers", number(4)}}),
      "it is not a number of layers (got 4)");
  const FamilyFile llama = family_file("gguf_families/llama4_text");
  CHECK(config(*llama.written, {})["moe_layers"] == nlohmann::json{1, 3});
  CHECK(config(*llama.written, {})["use_qk_norm"] == true);
  CHECK(config(*llama.written, {{"llama4.expert_count", number(128)}})["use_qk_norm"] == false);
  CHECK(config(*llama.written, {{"llama4.interleave_moe_layer_step", number(0)}})["moe_layers"]
            .empty());
  has(problem(*llama.written, {{"llama4.interleave_moe_layer_step", number(-1)}}),
      "it is not a number of layers (got -1)");
  const FamilyFile gemma = family_file("gguf_families/gemma4_text");
  const std::string widths = "gemma4.feed_forward_length";
  has(problem(*gemma.written, {{widths, list({8, 8, 9, 16, 16})}}), "layers differ in it");
  has(problem(*gemma.written, {{"gemma4.attention.head_count_kv", list({2, 3, 1, 2, 1})}}),
      "layers of one kind differ in it (got 2 and 3)");
  CHECK(config(*gemma.written, {{widths, number(8)}})["use_double_wide_mlp"] == false);
}

TEST_CASE("what a file says of newer families is checked") {
  const FamilyFile latent = family_file("gguf_families/deepseek_v3");
  const auto config = [](const TensorSource& file, const nlohmann::json& changes) {
    const WithFields source(file, changes);
    return nlohmann::json::parse(hub::gguf_config(source));
  };
  const auto problem = [&](const TensorSource& file, const nlohmann::json& changes) {
    return input_error([&] { config(file, changes); });
  };
  const auto number = [](double value) {
    return nlohmann::json{{"type", "u32"}, {"value", value}};
  };
  has(problem(*latent.written, {{"deepseek2.attention.key_length", number(30)}}),
      "it is not the sum of kv_lora_rank and qk_rope_head_dim (got 30)");
  has(problem(*latent.written, {{"deepseek2.rope.dimension_count", nullptr}}),
      "none of the families with files of 'deepseek2' has such fields");
  // Softmax instead of the sigmoid: a DeepSeek V2, whose groups these programs choose otherwise.
  has(problem(*latent.written, {{"deepseek2.expert_gating_func", number(1)}}),
      "field 'deepseek2.expert_group_count': it is not supported (expected 1)");
  // Layers of further tokens follow the others.
  const FamilyFile further = family_file("gguf_families/glm4_moe");
  const nlohmann::json three = {{"glm4moe.block_count", number(3)},
                                {"glm4moe.nextn_predict_layers", number(1)}};
  CHECK(config(*further.written, three)["num_hidden_layers"] == 2);
  CHECK(config(*further.written,
               {{"glm4moe.nextn_predict_layers", nullptr}})["num_hidden_layers"] == 2);
  // Which layers have a window: a list, or each so many-th one has none.
  const FamilyFile windows = family_file("gguf_families/cohere2");
  const std::string pattern = "cohere2.attention.sliding_window_pattern";
  const auto types = config(*windows.written, {{pattern, number(2)}})["layer_types"];
  CHECK(types == nlohmann::json{"sliding_attention", "full_attention", "sliding_attention"});
  CHECK_FALSE(config(*windows.written, {{pattern, nullptr}}).contains("layer_types"));
}

TEST_CASE("a model of a newer family that GGUF cannot describe is refused by what it has") {
  const Folder out;
  const auto exported = [&](const std::string& name) {
    return run_program("checkpoint export " + data + "families/" + name + " --to '" +
                       (out.path() / name).string() + "' --format gguf --no-tokenizer")
        .error;
  };
  has(exported("smollm3"), "model.attention_bias, model.ffn_bias, model.unrotated_layers");
  has(exported("exaone4"), "GGUF has no fields for what this model has in model.global");
  has(exported("deepseek_v2"),
      "GGUF has no fields for what this model has in model.attention_bias");
  has(exported("olmo3"), "model.attention_bias, model.tie_embeddings");
  has(exported("starcoder2"), "GGUF has no fields for what this model has in model.window");
  has(exported("helium"), "models of the family helium cannot be written as GGUF");
  // What programs of ggml take for granted of the newer ones.
  has(exported("ministral3"), "GGUF has no fields for what this model has in model.window");
  has(exported("hunyuan_v1_dense"), "model.attention_bias");
  has(exported("mamba2"), "model.recurrent_bias, model.recurrent_key_heads");
  has(exported("lfm2"), "model.recurrent_bias");
  has(exported("llama4"), "model.attention_bias, model.chunk");
  has(exported("qwen3_next"),
      "it has one number for linear_key_head_dim and linear_value_head_dim");
  has(exported("minicpm3"), "model.embedding_scale, model.ffn_bias, model.logit_base");
  has(exported("falcon"), "model.biases");
  const FamilyFile gemma = family_file("gguf_families/gemma4_text");
  nlohmann::json config = nlohmann::json::parse(hub::hub_config(gemma.shape));
  config["num_kv_shared_layers"] = 1;
  has(input_error([&] { hub::gguf_tensors(*gemma.folder.source, {.config = config.dump()}); }),
      "its last 1 layers share keys of the two layers before them");
  has(exported("apertus"), "model.attention_bias");
  // Files have no list of layers with experts, but how many first ones have none.
  hub::ModelShape sparse = hub::read_model_folder(data + "gguf_families/glm4_moe_lite");
  CHECK(hub::gguf_shape(sparse).family == "deepseek_v3");
  CHECK(std::get<std::int64_t>(hub::gguf_shape(sparse).values.at("first_dense_layers")) == 1);
  sparse.values["dense_layers"] = std::vector<std::int64_t>{1};
  has(input_error([&] { hub::gguf_shape(sparse); }),
      "as one of the family deepseek_v3, which has no words for model.dense_layers");
}
