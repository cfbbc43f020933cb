module;
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tuple>
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

/// An operator on operands that are made on the CPU, when it is measured.
struct DeviceRow {
  std::string name;
  std::function<Operands()> operands;
  double flops = 0;   // of products; otherwise it is limited by memory
  double passes = 0;  // how often the first operand's bytes are read or written
  std::function<Tensor(const Operands&)> run;
};

/// Random values, which are repeated after 2^20: a billion of them would take the CPU a minute.
Tensor values(const Dims& shape, DType dtype) {
  constexpr std::int64_t different = 1 << 20;
  const Tensor x = empty(shape);
  const std::int64_t count = std::min(x.numel(), different);
  const Tensor first = empty({count});
  ops::normal_(first, 0, 1, random_stream("bench"));
  for (std::int64_t i = 0; i < x.numel(); i += count) {
    std::copy_n(first.data<float>(), std::min(count, x.numel() - i), x.data<float>() + i);
  }
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
  void add(const std::string& name, std::function<Operands()> operands, double passes,
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
    const auto one = [this] { return Operands{lines()}; };
    const auto two = [this] { return Operands{lines(), lines()}; };
    add("clone", one, 2, [](const Operands& o) { return ops::clone(o[0]); });
    if (dtype_ == DType::bf16) {
      add("cast to f32 of", one, 3, [](const Operands& o) { return ops::cast(o[0], DType::f32); });
    }
    add("transposed copy", one, 2,
        [](const Operands& o) { return ops::contiguous(ops::transpose(o[0], 0, 1)); });
    add("add", two, 3, [](const Operands& o) { return ops::add(o[0], o[1]); });
    add("silu", one, 2, [](const Operands& o) { return ops::silu(o[0]); });
    add("swiglu", two, 3, [](const Operands& o) { return ops::swiglu(o[0], o[1]); });
  }

  void rows_of_lines() {
    const auto one = [this] { return Operands{lines()}; };
    const auto weighted = [this] {
      const Tensor x = lines();
      const Tensor weight = values({x.shape()[1]}, dtype_);
      return Operands{x, weight, weight};
    };
    add("rms_norm", weighted, 2, [](const Operands& o) { return ops::rms_norm(o[0], o[1]); });
    add("layer_norm", weighted, 2,
        [](const Operands& o) { return ops::layer_norm(o[0], o[1], o[2]); });
    add("softmax", one, 2, [](const Operands& o) { return ops::softmax(o[0], -1); });
    add("sum, dim 1", one, 1, [](const Operands& o) { return ops::sum(o[0], {1}); });
    add("sum, dim 0", one, 1, [](const Operands& o) { return ops::sum(o[0], {0}); });
    add("squared_norm", one, 1, [](const Operands& o) { return ops::squared_norm(o[0]); });
    add(
        "cross_entropy",
        [this] {
          const Tensor x = lines();
          return Operands{x, ids({x.shape()[0]}, x.shape()[1])};
        },
        1, [](const Operands& o) { return ops::cross_entropy(o[0], o[1]); });
    add(
        "embedding",
        [this] {
          const Tensor x = lines();
          return Operands{x, ids({x.shape()[0]}, x.shape()[0])};
        },
        2, [](const Operands& o) { return ops::embedding(o[0], o[1]); });
  }

  /// Of a layer's shapes in models of 1.5 B and 7 B parameters, if there are 2^24 elements.
  void products() {
    const double scale = std::sqrt(static_cast<double>(elements_) / (1 << 24));
    const auto scaled = [&](std::int64_t dim) {
      return std::max<std::int64_t>(
          64, static_cast<std::int64_t>(std::lround(static_cast<double>(dim) * scale / 64)) * 64);
    };
    for (const auto& [full_in, full_out] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1536, 1536},
                                                            {1536, 8960},
                                                            {8960, 1536},
                                                            {3584, 3584},
                                                            {3584, 18944},
                                                            {18944, 3584}}) {
      const Dims x = {scaled(4096), scaled(full_in)};
      const Dims weight = {scaled(full_out), scaled(full_in)};
      const Dims dy = {scaled(4096), scaled(full_out)};
      const std::string sizes = " " + std::to_string(x[1]) + " to " + std::to_string(dy[1]);
      const auto product = [&](const char* name, const std::function<Operands()>& operands,
                               std::function<Tensor(const Operands&)> run) {
        add(name + sizes, operands, 0, std::move(run));
        rows_.back().flops = 2.0 * static_cast<double>(x.product()) * static_cast<double>(dy[1]);
      };
      const auto two = [this](const Dims& a, const Dims& b) {
        return [this, a, b] { return Operands{values(a, dtype_), values(b, dtype_)}; };
      };
      product("linear", two(x, weight), [](const Operands& o) { return ops::linear(o[0], o[1]); });
      product("linear_grad_input", two(dy, weight),
              [](const Operands& o) { return ops::linear_grad_input(o[0], o[1]); });
      product("linear_grad_weight", two(dy, x),
              [](const Operands& o) { return ops::linear_grad_weight(o[0], o[1]); });
      if (dtype_ != DType::bf16) {
        continue;
      }
      for (const auto& [name, a, b] : {std::tuple{"scaled_linear", x, weight},
                                       std::tuple{"scaled_linear_grad_input", dy, weight},
                                       std::tuple{"scaled_linear_grad_weight", dy, x}}) {
        product(
            name, [of = two(a, b)] { return coded(of()); },
            [name](const Operands& o) { return called(name, o, R"({"dtype": "bf16"})").front(); });
      }
    }
  }

  void attention() {
    const std::int64_t heads = 12;
    const std::int64_t width = 128;
    const std::int64_t time = std::clamp<std::int64_t>(elements_ >> 14, 16, 1024);
    const std::int64_t batch = std::max<std::int64_t>(1, elements_ / (time * heads * width));
    const auto q = [=, this] { return values({batch, time, heads, width}, dtype_); };
    const auto k = [=, this] { return values({batch, time, 2, width}, dtype_); };
    add(
        "causal_attention", [=] { return Operands{q(), k(), k()}; }, 0,
        [](const Operands& o) { return ops::causal_attention(o[0], o[1], o[2]); });
    rows_.back().flops =
        2.0 * static_cast<double>(batch * heads * time) * static_cast<double>(time + 1) * width;
    add(
        "rotary", [=] { return Operands{q()}; }, 2,
        [](const Operands& o) { return ops::rotary(o[0], 1e6); });
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

/// Bytes that the driver's own copy within the device reads and writes in a second.
double copied_bytes(Device device, std::int64_t elements, int calls) {
  constexpr std::int64_t most = 1 << 28;  // bytes, more than caches hold
  const Tensor from = full({std::min(4 * elements, most)}, 1, DType::u8, device);
  const Tensor to = full(from.shape(), 0, DType::u8, device);
  const auto bytes = static_cast<std::size_t>(from.numel());
  const double seconds = seconds_of(
      device,
      [&] {
        driver_of(device).copy(nullptr, to.device_address(), from.device_address(), bytes,
                               CopyKind::on_device);
      },
      calls, calls);
  return 2 * static_cast<double>(bytes) / seconds;
}

/// The row's rate on the device, and how far the result of `small` is from the CPU's.
Json cells_of(const DeviceRow& row, const DeviceRow& small, Device device, int calls,
              double copied) {
  const Operands there = on(row.operands(), device);
  const double seconds = seconds_of(device, [&] { row.run(there); }, calls, calls);
  Json cells = {{"name", row.name}, {"us", seconds * 1e6}};
  if (row.flops > 0) {
    cells["tflops"] = row.flops / seconds / 1e12;
  } else {
    const double rate = row.passes * static_cast<double>(there[0].numel()) *
                        static_cast<double>(size_of(there[0].dtype())) / seconds;
    cells["gb_per_second"] = rate / 1e9;
    cells["share_of_bandwidth"] = rate / copied;
  }
  const Operands operands = small.operands();
  cells["deviation"] = deviation(small.run(on(operands, device)), small.run(operands));
  return cells;
}

}  // namespace

Json bench_device(const BenchArguments& arguments) {
  const NoGrad constant;
  const Device device = find_device(arguments.device);
  const std::int64_t elements = arguments.elements;
  const int calls = elements < 1 << 20 ? 1 : 5;  // small operands show that it works, not how fast
  const double copied = copied_bytes(device, elements, calls);
  Json all = Json::array();
  all.push_back({{"name", "copy by the driver"}, {"gb_per_second", copied / 1e9}});
  for (const DType dtype : {DType::bf16, DType::f32}) {
    DeviceRows made(elements, dtype);
    // The CPU computes smaller ones.
    DeviceRows small(std::min<std::int64_t>(elements, 1 << 16), dtype);
    const std::vector<DeviceRow> rows = made.made();
    const std::vector<DeviceRow> compared = small.made();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].name.find(arguments.only) != std::string::npos) {
        all.push_back(cells_of(rows[i], compared[i], device, calls, copied));
      }
    }
  }
  if (std::string_view("a small kernel").find(arguments.only) != std::string_view::npos) {
    add_small_work(device, calls, all);
  }
  return all;
}

}  // namespace tessera::app
