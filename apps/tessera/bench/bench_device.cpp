module;
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>
module tessera.app.bench;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.ops;
import tessera.app.commands;
import :bench_rows;

// `tessera bench device`: operators of a training step on a device of any kind.
namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;
using Operands = std::vector<Tensor>;

/// An operator on operands that are made on the CPU.
struct DeviceRow {
  std::string name;
  Operands operands;
  double flops = 0;   // of products; otherwise it is limited by memory
  double passes = 0;  // how often the first operand's bytes are read or written
  std::function<Tensor(const Operands&)> run;
};

Tensor values(const Dims& shape, DType dtype) {
  const Tensor x = empty(shape);
  ops::normal_(x, 0, 1, random_stream("bench"));
  return ops::cast(x, dtype);
}

/// Ids below `count`.
Tensor ids(const Dims& shape, std::int64_t count) {
  const Tensor x = empty(shape, DType::i64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<std::int64_t>()[i] = i * 7919 % count;
  }
  return x;
}

Tensors called(const char* name, const Operands& operands, const std::string& arguments) {
  const Op& op = find_op(name);
  return call(op, operands, attributes_from_json(*op.arguments, arguments, "bench device"));
}

/// Operands with each tensor replaced by its 8-bit codes and their factor.
Operands coded(const Operands& operands) {
  Operands all;
  for (const Tensor& x : operands) {
    const Tensors made = called(
        "quantize_f8", {x, Tensor()},
        R"({"dtype": "f8e4m3", "scales": "whole", "powers_of_two": false, "order": "as_x"})");
    all.insert(all.end(), made.begin(), made.end());
  }
  return all;
}

/// The rows for operands of about `elements` elements, of one type.
class DeviceRows {
 public:
  DeviceRows(std::int64_t elements, DType dtype) : elements_(elements), dtype_(dtype) {}

  std::vector<DeviceRow> made() {
    moves();
    rows_of_lines();
    products();
    attention();
    return std::move(rows_);
  }

 private:
  void add(const std::string& name, Operands operands, double passes,
           std::function<Tensor(const Operands&)> run) {
    rows_.push_back({.name = name + " " + std::string(name_of(dtype_)),
                     .operands = std::move(operands),
                     .passes = passes,
                     .run = std::move(run)});
  }

  /// Of a matrix with lines of 2,048 elements.
  Tensor lines() const {
    constexpr std::int64_t width = 2048;
    return values({std::max<std::int64_t>(1, elements_ / width), width}, dtype_);
  }

  void moves() {
    const Tensor x = lines();
    const Tensor y = lines();
    add("clone", {x}, 2, [](const Operands& o) { return ops::clone(o[0]); });
    if (dtype_ == DType::bf16) {
      add("cast to f32 of", {x}, 3, [](const Operands& o) { return ops::cast(o[0], DType::f32); });
    }
    add("transposed copy", {x}, 2,
        [](const Operands& o) { return ops::contiguous(ops::transpose(o[0], 0, 1)); });
    add("add", {x, y}, 3, [](const Operands& o) { return ops::add(o[0], o[1]); });
    add("silu", {x}, 2, [](const Operands& o) { return ops::silu(o[0]); });
    add("swiglu", {x, y}, 3, [](const Operands& o) { return ops::swiglu(o[0], o[1]); });
  }

  void rows_of_lines() {
    const Tensor x = lines();
    const Tensor weight = values({x.shape()[1]}, dtype_);
    add("rms_norm", {x, weight}, 2, [](const Operands& o) { return ops::rms_norm(o[0], o[1]); });
    add("layer_norm", {x, weight, weight}, 2,
        [](const Operands& o) { return ops::layer_norm(o[0], o[1], o[2]); });
    add("softmax", {x}, 2, [](const Operands& o) { return ops::softmax(o[0], -1); });
    add("sum, dim 1", {x}, 1, [](const Operands& o) { return ops::sum(o[0], {1}); });
    add("sum, dim 0", {x}, 1, [](const Operands& o) { return ops::sum(o[0], {0}); });
    add("squared_norm", {x}, 1, [](const Operands& o) { return ops::squared_norm(o[0]); });
    const std::int64_t count = x.shape()[0];
    add("cross_entropy", {x, ids({count}, x.shape()[1])}, 1,
        [](const Operands& o) { return ops::cross_entropy(o[0], o[1]); });
    add("embedding", {x, ids({count}, count)}, 2,
        [](const Operands& o) { return ops::embedding(o[0], o[1]); });
  }

  /// Of a layer's shapes in models of 1.5 B and 7 B parameters, if there are 2^24 elements.
  void products() {
    const double scale = std::sqrt(static_cast<double>(elements_) / (1 << 24));
    const auto scaled = [&](std::int64_t dim) {
      return std::max<std::int64_t>(
          64, static_cast<std::int64_t>(std::lround(static_cast<double>(dim) * scale / 64)) * 64);
    };
    for (const auto& [in, out] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1536, 1536},
                                                            {1536, 8960},
                                                            {8960, 1536},
                                                            {3584, 3584},
                                                            {3584, 18944},
                                                            {18944, 3584}}) {
      const std::int64_t tokens = scaled(4096);
      const Tensor x = values({tokens, scaled(in)}, dtype_);
      const Tensor weight = values({scaled(out), scaled(in)}, dtype_);
      const Tensor dy = values({tokens, scaled(out)}, dtype_);
      const std::string sizes =
          " " + std::to_string(scaled(in)) + " to " + std::to_string(scaled(out));
      const auto product = [&](const char* name, Operands operands,
                               std::function<Tensor(const Operands&)> run) {
        add(name + sizes, std::move(operands), 0, std::move(run));
        rows_.back().flops =
            2.0 * static_cast<double>(x.numel()) * static_cast<double>(scaled(out));
      };
      product("linear", {x, weight}, [](const Operands& o) { return ops::linear(o[0], o[1]); });
      product("linear_grad_input", {dy, weight},
              [](const Operands& o) { return ops::linear_grad_input(o[0], o[1]); });
      product("linear_grad_weight", {dy, x},
              [](const Operands& o) { return ops::linear_grad_weight(o[0], o[1]); });
      if (dtype_ != DType::bf16) {
        continue;
      }
      for (const auto& [name, of] :
           std::vector<std::pair<const char*, Operands>>{{"scaled_linear", {x, weight}},
                                                         {"scaled_linear_grad_input", {dy, weight}},
                                                         {"scaled_linear_grad_weight", {dy, x}}}) {
        product(name, coded(of), [name](const Operands& o) {
          return called(name, o, R"({"dtype": "bf16"})").front();
        });
      }
    }
  }

  void attention() {
    const std::int64_t heads = 12;
    const std::int64_t width = 128;
    const std::int64_t time = std::clamp<std::int64_t>(elements_ >> 14, 16, 1024);
    const std::int64_t batch = std::max<std::int64_t>(1, elements_ / (time * heads * width));
    const Tensor q = values({batch, time, heads, width}, dtype_);
    const Tensor k = values({batch, time, 2, width}, dtype_);
    add("causal_attention", {q, k, k}, 0,
        [](const Operands& o) { return ops::causal_attention(o[0], o[1], o[2]); });
    rows_.back().flops =
        2.0 * static_cast<double>(batch * heads * time) * static_cast<double>(time + 1) * width;
    add("rotary", {q}, 2, [](const Operands& o) { return ops::rotary(o[0], 1e6); });
  }

  std::int64_t elements_;
  DType dtype_;
  std::vector<DeviceRow> rows_;
};

Operands on(const Operands& operands, Device device) {
  Operands there;
  for (const Tensor& x : operands) {
    there.push_back(ops::to_device(x, device));
  }
  return there;
}

/// Seconds of one call: of several batches, each of which the host waits for once, the fastest.
double seconds_of(Device device, const std::function<void()>& run, int calls, int batches) {
  run();
  synchronize(device);
  double best = std::numeric_limits<double>::infinity();
  for (int batch = 0; batch < batches; ++batch) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) {
      run();
    }
    synchronize(device);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count() / calls);
  }
  return best;
}

/// The largest |found - wanted| / (1 + |wanted|); infinity where one is not a number.
double deviation(const Tensor& actual, const Tensor& expected) {
  const Tensor a = ops::cast(ops::to_device(actual, cpu), DType::f32);
  const Tensor b = ops::cast(expected, DType::f32);
  if (a.shape() != b.shape()) {
    fail("bench device: a result has the shape " + to_string(a) + " instead of " + to_string(b));
  }
  double largest = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const double x = a.data<float>()[i];
    const double y = b.data<float>()[i];
    const double difference = std::abs(x - y) / (1 + std::abs(y));
    largest = std::isnan(difference) ? std::numeric_limits<double>::infinity()
                                     : std::max(largest, difference);
  }
  return largest;
}

/// Costs of small work: what the host needs to queue a kernel, and what it waits for one.
void add_small_work(Device device, int calls, Json& all) {
  const Tensor x = full({1024}, 1, DType::f32, device);
  const double queued = seconds_of(device, [&] { ops::add(x, x); }, 100 * calls, 3);
  const double waited = seconds_of(
      device,
      [&] {
        ops::add(x, x);
        synchronize(device);
      },
      20 * calls, 3);
  all.push_back({{"name", "a small kernel, queued"}, {"us", queued * 1e6}});
  all.push_back({{"name", "a small kernel, waited for"}, {"us", waited * 1e6}});
}

}  // namespace

Json bench_device(const BenchArguments& arguments) {
  const NoGrad constant;
  const Device device = find_device(arguments.device);
  const std::int64_t elements = arguments.elements;
  const int calls = elements < 1 << 20 ? 1 : 5;  // small operands show that it works, not how fast
  Json all = Json::array();
  for (const DType dtype : {DType::bf16, DType::f32}) {
    std::vector<DeviceRow> rows = DeviceRows(elements, dtype).made();
    // The CPU computes smaller ones.
    const std::vector<DeviceRow> compared =
        DeviceRows(std::min<std::int64_t>(elements, 1 << 16), dtype).made();
    double copied = 0;  // bytes in a second
    for (std::size_t i = 0; i < rows.size(); ++i) {
      DeviceRow& row = rows[i];
      if (row.name.find(arguments.only) == std::string::npos && i > 0) {
        continue;
      }
      const Operands there = on(row.operands, device);
      const double seconds = seconds_of(device, [&] { row.run(there); }, calls, calls);
      Json cells = {{"name", row.name}, {"us", seconds * 1e6}};
      if (row.flops > 0) {
        cells["tflops"] = row.flops / seconds / 1e12;
      } else {
        const Tensor& x = row.operands[0];
        const double rate = row.passes * static_cast<double>(x.numel()) *
                            static_cast<double>(size_of(x.dtype())) / seconds;
        copied = i == 0 ? rate : copied;
        cells["gb_per_second"] = rate / 1e9;
        cells["share_of_clone"] = rate / copied;
      }
      const DeviceRow& small = compared[i];
      cells["deviation"] =
          deviation(small.run(on(small.operands, device)), small.run(small.operands));
      all.push_back(std::move(cells));
      row.operands.clear();
    }
  }
  add_small_work(device, calls, all);
  return all;
}

}  // namespace tessera::app
