#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.conformance;

#include "operator_samples.hpp"

namespace tessera::testing {
namespace {

using Json = nlohmann::json;

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    fail("samples: cannot read " + path);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

DType type_of(const std::string& name) {
  static const std::map<std::string, DType> types = {
      {"F32", DType::f32}, {"F64", DType::f64}, {"BF16", DType::bf16}, {"F16", DType::f16},
      {"I64", DType::i64}, {"I32", DType::i32}, {"U8", DType::u8},     {"BOOL", DType::boolean}};
  return types.at(name);
}

Attributes pack_attributes(const Op& op, const Json& values, const std::string& name) {
  if (op.arguments == nullptr) {
    if (!values.empty()) {
      fail(name + ": the sample has arguments, but the operator has none: " + op.schema);
    }
    return {};
  }
  Json all = values;
  for (const ArgumentField& field : op.arguments->fields) {
    const std::string key(field.name);
    if (field.type == "random") {  // the call's place in a stream; the start if it is not given
      std::string numbers;
      for (const char* part : {"seed", "stream", "offset", "run", "stride"}) {
        numbers += std::string(numbers.empty() ? "" : " ") + part + "=" +
                   std::to_string(values.value(part, 0));
        all.erase(part);
      }
      all[key] = numbers;
    } else if (field.type == "bool" && !values.contains(key)) {
      all[key] = false;  // a sample names the flags that it sets
    } else if (field.type == "spec" && !values.contains(key)) {
      all[key] = "none";  // a plain call
    }
  }
  return attributes_from_json(*op.arguments, all.dump(), name);
}

/// Calls f(entry, what the entry says of tensors) for each entry of `folder`/`file`.json.
template <class F>
void for_each_entry(const std::string& folder, const std::string& file, F f) {
  const std::map<std::string, Tensor> tensors =
      read_safetensors(folder + "/" + file + ".safetensors");
  const auto tensor = [&](const Json& key) { return key.is_null() ? Tensor() : tensors.at(key); };
  const auto all = [&](const Json& keys) {
    std::vector<Tensor> some;
    some.reserve(keys.size());
    for (const Json& key : keys) {
      some.push_back(tensor(key));
    }
    return some;
  };
  for (const Json& entry : Json::parse(read_bytes(folder + "/" + file + ".json"))) {
    OperatorSample sample;
    sample.name = entry["sample"];
    for (const Json& input : entry["inputs"]) {
      if (input.is_object()) {
        for (const Json& key : input["list"]) {
          sample.inputs.push_back(tensor(key));
        }
      } else {
        sample.inputs.push_back(tensor(input));
      }
    }
    sample.outputs = all(entry["outputs"]);
    sample.output_gradients = all(entry["grad_outputs"]);
    sample.input_gradients = all(entry["grad_inputs"]);
    f(entry, std::move(sample));
  }
}

}  // namespace

std::map<std::string, Tensor> read_safetensors(const std::string& path) {
  const std::string bytes = read_bytes(path);
  std::uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof header_size);
  const Json header = Json::parse(std::string_view(bytes).substr(8, header_size));
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      continue;
    }
    Dims shape;
    for (const Json& d : entry["shape"]) {
      shape.push_back(d.get<std::int64_t>());
    }
    Tensor x = empty(shape, type_of(entry["dtype"]));
    const auto begin = entry["data_offsets"][0].get<std::size_t>();
    const auto end = entry["data_offsets"][1].get<std::size_t>();
    if (end > begin) {
      std::memcpy(x.raw_data(), bytes.data() + 8 + header_size + begin, end - begin);
    }
    tensors.emplace(name, std::move(x));
  }
  return tensors;
}

OperatorSamples read_operator_samples(const std::string& folder) {
  std::map<std::string, const Op*> ops;
  for (const Op* op : all_ops()) {
    ops.emplace(op->name, op);
  }
  OperatorSamples result;
  std::set<std::string> sampled;
  std::map<std::string, int> counts;  // of an operator's samples: files number their own ones
  std::set<std::string> files;        // in the order of their names
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().stem().string();
    if (name.ends_with("operators") && entry.path().extension() == ".json") {
      files.insert(name);
    }
  }
  for (const std::string& file : files) {
    for_each_entry(folder, file, [&](const Json& entry, OperatorSample sample) {
      const std::string op = entry["op"];
      const bool fresh = sampled.insert(op).second;
      sample.name = op + "/" + std::to_string(counts[op]++);
      if (ops.contains(op)) {
        sample.op = ops[op];
        sample.attributes = pack_attributes(*sample.op, entry["attrs"], sample.name);
        result.samples.push_back(std::move(sample));
      } else if (fresh) {
        result.without_operator.push_back(op);
      }
    });
  }
  for (const auto& [name, op] : ops) {
    if (!sampled.contains(name)) {
      result.without_sample.push_back(name);
    }
  }
  return result;
}

std::vector<FunctionSample> read_function_samples(const std::string& folder) {
  std::vector<FunctionSample> samples;
  const auto add = [&](const Json& entry, OperatorSample sample) {
    FunctionSample function{entry["op"], std::move(sample), {}};
    for (const auto& [name, value] : entry["attrs"].items()) {
      std::vector<double>& numbers = function.numbers[name];
      for (const Json& number : value.is_array() ? value : Json::array({value})) {
        numbers.push_back(number.is_boolean() ? (number.get<bool>() ? 1 : 0)
                                              : number.get<double>());
      }
    }
    samples.push_back(std::move(function));
  };
  for_each_entry(folder, "functions", add);
  return samples;
}

std::vector<Tensor> fresh_inputs(const OperatorSample& sample, bool requires_grad) {
  std::vector<Tensor> inputs;
  for (const Tensor& x : sample.inputs) {
    if (!x) {
      inputs.emplace_back();
      continue;
    }
    inputs.push_back(ops::clone(x));
    if (requires_grad && is_floating(x.dtype())) {
      inputs.back().set_requires_grad();
    }
  }
  return inputs;
}

}  // namespace tessera::testing
