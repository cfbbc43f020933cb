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
  Attributes attributes;
  for (const auto& [key, value] : values.items()) {
    if (std::none_of(op.parameters.begin(), op.parameters.end(),
                     [&](const Op::Parameter& parameter) { return parameter.name == key; })) {
      fail(name + ": the sample has an attribute '" + key +
           "' that the schema lacks: " + op.schema);
    }
  }
  for (const Op::Parameter& parameter : op.parameters) {
    if (parameter.type == "bool" && !values.contains(parameter.name)) {
      attributes.add(false);  // a sample names the flags that it sets
      continue;
    }
    if (!values.contains(parameter.name)) {
      fail(name + ": the sample lacks attribute " + parameter.name);
    }
    const Json& value = values[parameter.name];
    if (parameter.type == "float") {
      attributes.scalar(value.get<double>());
    } else if (parameter.type == "free") {
      attributes.free_integer(value.get<std::int64_t>());
    } else if (parameter.type == "bool") {
      attributes.add(value.get<bool>());
    } else if (parameter.type == "dtype") {
      attributes.add(*dtype_from_name(value.get<std::string>()));
    } else if (parameter.type == "dims") {
      Dims dims;
      for (const Json& d : value) {
        dims.push_back(d.get<std::int64_t>());
      }
      attributes.add(dims);
    } else if (parameter.type == "int") {
      attributes.add(value.get<std::int64_t>());
    } else {
      fail(name + ": attributes of type " + parameter.type + " cannot be read from a sample");
    }
  }
  return attributes;
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
  std::set<std::string> files;  // in the order of their names
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (path.ends_with("operators.json")) {
      files.insert(path.substr(0, path.size() - 5));
    }
  }
  std::map<std::string, Tensor> tensors;
  Json entries = Json::array();
  std::map<std::string, int> counts;  // of an operator's samples: files number their own ones
  for (const std::string& file : files) {
    for (const auto& [name, tensor] : read_safetensors(file + ".safetensors")) {
      tensors.emplace(file + name, tensor);
    }
    for (Json& entry : Json::parse(read_bytes(file + ".json"))) {
      entry["file"] = file;
      const std::string op = entry["op"];
      entry["sample"] = op + "/" + std::to_string(counts[op]++);
      entries.push_back(std::move(entry));
    }
  }
  std::map<std::string, const Op*> ops;
  for (const Op* op : all_ops()) {
    ops.emplace(op->name, op);
  }
  OperatorSamples result;
  std::set<std::string> sampled;
  for (const Json& entry : entries) {
    const std::string op = entry["op"];
    const bool fresh = sampled.insert(op).second;
    if (!ops.contains(op)) {
      if (fresh) {
        result.without_operator.push_back(op);
      }
      continue;
    }
    const auto tensor = [&](const Json& key) {
      return key.is_null() ? Tensor()
                           : tensors.at(entry["file"].get<std::string>() + key.get<std::string>());
    };
    OperatorSample sample;
    sample.op = ops[op];
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
    sample.attributes = pack_attributes(*sample.op, entry["attrs"], sample.name);
    for (const Json& key : entry["outputs"]) {
      sample.outputs.push_back(tensor(key));
    }
    for (const Json& key : entry["grad_outputs"]) {
      sample.output_gradients.push_back(tensor(key));
    }
    for (const Json& key : entry["grad_inputs"]) {
      sample.input_gradients.push_back(tensor(key));
    }
    result.samples.push_back(std::move(sample));
  }
  for (const auto& [name, op] : ops) {
    if (!sampled.contains(name)) {
      result.without_sample.push_back(name);
    }
  }
  return result;
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

double largest_difference(const Tensor& a, const Tensor& b) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) {
    return infinity;
  }
  const std::vector<double> x = to_doubles(a);
  const std::vector<double> y = to_doubles(b);
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) {
      continue;
    }
    const double difference = std::abs(x[i] - y[i]) / (1 + std::abs(y[i]));
    largest = std::isnan(difference) ? infinity : std::max(largest, difference);
  }
  return largest;
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-9;
    case DType::f32:
      return 1e-5;
    case DType::bf16:
      return 1.6e-2;
    case DType::f16:
      return 2e-3;
    default:
      return 0;
  }
}

}  // namespace tessera::testing
