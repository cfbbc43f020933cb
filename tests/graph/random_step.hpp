// Steps of random operators on plain tensors, the same calls for one seed. Include it after the
// imports of tessera.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tessera::testing {

/// What a step leaves, bit by bit: outputs, inputs that it has written, random streams.
using Bits = std::map<std::string, std::vector<std::uint64_t>>;

inline void add_bits(Bits& bits, const std::string& name, const Tensor& x) {
  std::vector<std::uint64_t>& words = bits[name];
  for (const double value : to_doubles(x)) {
    words.push_back(std::bit_cast<std::uint64_t>(value));
  }
}

class RandomStep {
 public:
  using Run = std::function<void(SectionKind section, const std::function<void()>& body)>;

  /// `group`: ranks that all take a step of this seed.
  explicit RandomStep(unsigned seed, std::optional<ops::GroupArgument> group = {})
      : seed_(seed), group_(group) {}

  /// The variables of a step, and with them its random numbers.
  static StepVariables variables(int step) {
    StepVariables result;
    result.numbers["lr"] = 0.125 + 0.0625 * step;
    result.counts["step"] = 3 + step;
    result.streams = random_state();
    return result;
  }

  /// The inputs of a step, which differ between steps and ranks.
  std::map<std::string, Tensor> inputs(int step) const {
    std::mt19937 random(seed_ * 1000 + static_cast<unsigned>(step * 10 + current_rank()));
    std::map<std::string, Tensor> result;
    for (const auto& [name, shape] :
         std::map<std::string, Dims>{{"a", {4, 6}}, {"b", {6, 4}}, {"c", {24}}, {"d", {4, 6}}}) {
      std::vector<float> values(24);
      for (float& value : values) {
        value = static_cast<float>(random() % 4096) / 2048.0F - 1;
      }
      result[name] = from_values<float>(std::span<const float>(values), shape);
    }
    return result;
  }

  /// The step's calls, in the sections `gradients` and `update`. Returns the outputs.
  std::map<std::string, Tensor> take(const std::map<std::string, Tensor>& inputs,
                                     const StepVariables& variables, const Run& run) {
    random_.seed(seed_);
    variables_ = variables;
    inputs_ = inputs;
    pool_.clear();
    for (const auto& [name, x] : inputs) {
      pool_.push_back(x);
    }
    scratch_ =
        empty({12 * 8 + 24 * 4}, DType::u8);  // the step allocates its memory when it needs it
    scratch_.storage().release_memory();
    run(SectionKind::gradients, [&] { calls(4 + below(24)); });
    std::map<std::string, Tensor> outputs;
    run(SectionKind::update, [&] {
      calls(2 + below(16));
      complete();
      for (int i = 0; i < 3; ++i) {
        outputs["y" + std::to_string(i)] = pool_[pool_.size() - 1 - below(pool_.size() / 2)];
      }
    });
    pool_.clear();
    inputs_.clear();
    released_.clear();
    scratch_ = Tensor();
    return outputs;
  }

 private:
  std::size_t below(std::size_t end) { return random_() % end; }
  bool chance(unsigned percent) { return random_() % 100 < percent; }

  void keep(Tensor x) { pool_.push_back(std::move(x)); }

  Tensor any() {
    // Recent tensors more often, so that chains are long.
    const std::size_t from = chance(60) && pool_.size() > 6 ? pool_.size() - 6 : 0;
    const Tensor x = pool_[from + below(pool_.size() - from)];
    return x.numel() <= 256 ? x : ops::narrow(ops::reshape(x, {x.numel()}), 0, 7, 48);
  }

  Tensor any_of_rank(int least) {
    for (int i = 0; i < 20; ++i) {
      if (Tensor x = any(); x.dims() >= least) {
        return x;
      }
    }
    return least <= 1 ? inputs_.at("c") : inputs_.at("a");
  }

  /// Of the shape and type of `x`, in other memory or the same tensor.
  Tensor partner(const Tensor& x) {
    for (int i = 0; i < 12; ++i) {
      const Tensor& y = pool_[below(pool_.size())];
      if (y.shape() == x.shape() && y.dtype() == x.dtype() && &y.storage() != &x.storage()) {
        return y;
      }
    }
    return chance(50) ? full(x.shape(), 0.5, x.dtype()) : ops::sigmoid(x);
  }

  static bool covers_its_memory(const Tensor& x) {
    return x.is_contiguous() && x.offset() == 0 &&
           static_cast<std::size_t>(x.numel()) * size_of(x.dtype()) == x.storage().bytes();
  }

  bool is_input(const Tensor& x) const {
    return std::ranges::any_of(
        inputs_, [&](const auto& input) { return &input.second.storage() == &x.storage(); });
  }

  /// Whether an issued collective reads or writes its memory.
  bool is_busy(const Tensor& x) const {
    return pending_source_ && &pending_source_.storage() == &x.storage();
  }

  bool can_write(const Tensor& x) const {
    for (int dim = 0; dim < x.dims(); ++dim) {
      if (x.strides()[dim] == 0 && x.shape()[dim] > 1) {
        return false;
      }
    }
    return x.numel() > 0 && !is_busy(x);
  }

  void calls(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t kind = below(group_ ? 13 : 10);
      kind < 3    ? compute()
      : kind < 5  ? view()
      : kind < 7  ? write()
      : kind == 7 ? join()
      : kind == 8 ? change_memory()
      : kind == 9 ? use_the_step()
                  : communicate();
    }
  }

  void compute() {
    const Tensor x = any();
    switch (below(14)) {
      case 0:
        return keep(ops::tanh(x));
      case 1:
        return keep(ops::neg(x));
      case 2:
        return keep(ops::add(x, partner(x), 0.5));
      case 3:
        return keep(ops::mul(x, ops::sigmoid(partner(x))));
      case 4:
        return keep(ops::mul_scalar(x, 0.75));
      case 5:
        return keep(ops::where(ops::gt(x, 0.0), x, partner(x)));
      case 6:
        return keep(ops::cast(x, x.dtype() == DType::f32   ? DType::bf16
                                 : x.dtype() == DType::f64 ? DType::f32
                                                           : DType::f64));
      case 7: {
        const Tensor y = any_of_rank(1);
        if (chance(50)) {
          return keep(chance(50) ? ops::rms_norm(y, {}, 1e-3) : ops::layer_norm(y, {}, {}, 1e-3));
        }
        return keep(ops::softmax(y, static_cast<std::int64_t>(below(std::size_t(y.dims())))));
      }
      case 8: {
        const Tensor y = any_of_rank(1);
        return keep(ops::sum(y, {static_cast<std::int64_t>(below(std::size_t(y.dims())))}));
      }
      case 9: {
        const Tensor a = any_of_rank(2);
        const Tensor m = a.dims() == 2 ? a : inputs_.at("a");
        return keep(ops::tanh(ops::mm(m, ops::transpose(partner(m), 0, 1))));
      }
      case 10: {
        const Tensor y = any_of_rank(1);
        return keep(ops::gather(y, ops::argsort(y, 0), 0));
      }
      case 11: {  // operands that share memory, at other places
        const Tensor y = any_of_rank(1);
        return keep(ops::sub(y, ops::select(y, 0, y.shape()[0] - 1), 0.5));
      }
      case 12: {
        const Tensor y = any_of_rank(2);
        const Tensor square =
            ops::tanh(ops::sum(ops::mul(ops::unsqueeze(y, 0), ops::unsqueeze(y, 1)), {-1}));
        return keep(square.dims() == 2 ? ops::sub(square, ops::transpose(square, 0, 1), 0.5)
                                       : square);
      }
      default: {  // the same call twice
        keep(ops::tanh(x));
        return keep(ops::add(ops::tanh(x), ops::mul_scalar(x, 0.25)));
      }
    }
  }

  void view() {
    const Tensor x = any();
    const Tensor y = any_of_rank(1);
    const auto dim = static_cast<std::int64_t>(below(std::size_t(y.dims())));
    const std::int64_t extent = y.shape()[static_cast<int>(dim)];
    switch (below(11)) {
      case 0:
        return keep(ops::narrow(y, dim, 0, (extent + 1) / 2));
      case 1:
        return keep(ops::select(y, dim, extent - 1));
      case 2:
        return keep(ops::transpose(y, 0, -1));
      case 3:
        return keep(ops::reshape(x, {x.numel()}));  // a copy where the strides ask for one
      case 4:
        return keep(ops::contiguous(x));
      case 5:
        return keep(ops::clone(x));
      case 6:
        return keep(ops::unsqueeze(y, dim));
      case 7: {
        Dims shape = {2};
        for (int i = 0; i < x.dims(); ++i) {
          shape.push_back(x.shape()[i]);
        }
        return keep(ops::expand(ops::unsqueeze(x, 0), shape));
      }
      case 8:
        for (const Tensor& part : ops::split(y, (extent + 1) / 2, dim)) {
          keep(part);
        }
        return;
      case 9: {
        const Tensor whole = x.is_contiguous() ? x : inputs_.at("d");
        const std::int64_t count = (whole.numel() + 1) / 2;
        return keep(alias(whole, {count}, {count > 1 ? 2 : 1}, whole.offset()));
      }
      default:
        return keep(ops::contiguous(ops::transpose(y, 0, -1)));
    }
  }

  void write() {
    const Tensor x = any();
    if (!can_write(x)) {
      return compute();
    }
    switch (below(9)) {
      case 0:
        ops::add_(x, partner(x), 0.25);
        return;
      case 1:
        ops::mul_(x, ops::sigmoid(partner(x)));
        return;
      case 2:
        ops::copy_(x, partner(x));
        return;
      case 3:
        ops::fill_(x, 0.375);
        return;
      case 4:
        ops::tanh_(x);
        return;
      case 5:
        ops::add_(x, x);
        ops::mul_scalar_(x, 0.5);
        return;
      case 6: {  // through a view, while another one exists
        const Tensor flat = x.is_contiguous() ? ops::reshape(x, {x.numel()}) : x;
        ops::mul_scalar_(ops::narrow(ops::reshape(flat, {flat.numel()}), 0, 0, 1), -1);
        return keep(flat);
      }
      case 7: {
        const std::vector<Tensor> list = {x, ops::clone(x)};
        const std::vector<Tensor> by = {partner(x), partner(x)};
        ops::foreach_add_(list, by, 0.5);
        ops::foreach_mul_(list, 0.5);
        return keep(list[1]);
      }
      default: {
        const Tensor mean = zeros(x.shape(), x.dtype());
        ops::lerp_scalar_(mean, x, 0.25);
        return keep(mean);
      }
    }
  }

  void join() {
    const Tensor x = any_of_rank(1);
    const std::vector<Tensor> two = {x, partner(x)};
    switch (below(4)) {
      case 0:
        return keep(ops::cat(two, 0));
      case 1:
        return keep(ops::stack(two, 0));
      case 2: {  // joins what was cut
        const Tensors parts = ops::split(x, (x.shape()[0] + 1) / 2, 0);
        return keep(ops::cat(std::vector<Tensor>(parts.begin(), parts.end()), 0));
      }
      default: {
        const std::vector<Tensor> list = {x, x};
        return keep(ops::cat(list, -1));
      }
    }
  }

  void change_memory() {
    const std::size_t kind = below(3);
    if (kind == 0 && !released_.empty()) {
      const Tensor x = released_.back();
      released_.pop_back();
      x.storage().restore_memory();
      ops::copy_(x, full(x.shape(), 0.25, x.dtype()));  // nothing else: it has no values yet
      return keep(x);
    }
    if (kind == 1) {
      const bool releases = scratch_.storage().has_memory();
      if (releases) {
        if (is_busy(scratch_)) {
          complete();
        }
        drop(scratch_);
        scratch_.storage().release_memory();
        return;
      }
      scratch_.storage().restore_memory();
      const Tensor f64 = from_storage(scratch_.impl()->storage, {2, 6}, {6, 1}, 0, DType::f64);
      const Tensor f32 = from_storage(scratch_.impl()->storage, {4, 6}, {6, 1}, 24, DType::f32);
      ops::copy_(f64, full({2, 6}, 0.75, DType::f64));
      ops::copy_(f32, ops::tanh(inputs_.at("a")));
      keep(f64);
      return keep(f32);
    }
    const Tensor x = any();
    if (!covers_its_memory(x) || is_input(x) || is_busy(x) || pool_.size() < 8) {
      return view();
    }
    drop(x);
    x.storage().release_memory();
    released_.push_back(x);
  }

  /// Its memory is in no tensor of the pool any more.
  void drop(const Tensor& x) {
    std::erase_if(pool_, [&](const Tensor& y) { return &y.storage() == &x.storage(); });
  }

  /// What depends on the step: numbers, counts, random numbers; and what the host reads.
  void use_the_step() {
    const Tensor x = any();
    switch (below(6)) {
      case 0:
        return keep(ops::mul_scalar(x, Number::variable("lr", variables_.numbers.at("lr"))));
      case 1:
        return keep(ops::dropout(x, 0.25, random_stream("noise")));
      case 2: {
        const Tensor noise = empty(x.shape(), x.dtype());
        ops::normal_(noise, 0, 1, random_stream("noise"));
        return keep(noise);
      }
      case 3: {
        const Tensor constant = full({3}, 2);
        return keep(ops::sum(constant).item() == 6 ? constant : x);
      }
      case 4: {
        if (x.dtype() != DType::f32) {
          return compute();
        }
        const std::vector<Tensor> parameters = {ops::contiguous(ops::tanh(x))};
        const std::vector<Tensor> gradients = {ops::contiguous(ops::sigmoid(x))};
        const std::vector<Tensor> means = {zeros(x.shape())};
        const std::vector<Tensor> squares = {zeros(x.shape())};
        const std::vector<Tensor> none = {Tensor()};
        ops::adamw_(parameters, gradients, means, squares, none,
                    {.lr = Number::variable("lr", variables_.numbers.at("lr")),
                     .beta1 = 0.9,
                     .beta2 = 0.95,
                     .eps = 1e-8,
                     .weight_decay = 0.1,
                     .grad_scale = 1,
                     .step = Count::variable("step", variables_.counts.at("step"))});
        keep(means[0]);
        return keep(parameters[0]);
      }
      default:
        return keep(from_values<float>({0.5F, -1, 2, 0.25F}, {4}));
    }
  }

  void complete() {
    if (pending_source_) {
      keep(pending_.wait());
      pending_source_ = Tensor();
      pending_ = ops::PendingTensor();
    }
  }

  void communicate() {
    const ops::GroupArgument group = *group_;
    const Tensor x = ops::contiguous(any_of_rank(1));
    const std::int64_t extent = x.shape()[0] * group.size();
    switch (below(6)) {
      case 0:
        return keep(ops::mul_scalar(ops::all_reduce(x, ReduceOp::sum, group), 0.25));
      case 1:
        return keep(ops::all_gather(x, 0, extent, group));
      case 2: {
        const Tensor own = ops::clone(x);
        ops::all_reduce_(own, ReduceOp::max, group);
        return keep(own);
      }
      case 3: {
        const Tensor whole = ops::all_gather(ops::tanh(x), 0, extent, group);
        return keep(ops::reduce_scatter(whole, 0, ReduceOp::sum, group));
      }
      case 4:
        complete();
        pending_source_ = x;
        pending_ = ops::all_gather_async(x, 0, extent, group);
        return;
      default:
        return complete();
    }
  }

  unsigned seed_;
  std::optional<ops::GroupArgument> group_;
  std::mt19937 random_;
  StepVariables variables_;
  std::map<std::string, Tensor> inputs_;
  std::vector<Tensor> pool_;      // whose memory exists
  std::vector<Tensor> released_;  // whose memory does not
  Tensor scratch_;                // memory with views of two types
  ops::PendingTensor pending_;
  Tensor pending_source_;
};

}  // namespace tessera::testing
