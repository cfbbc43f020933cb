#include "dnn.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "find_function.hpp"

import tessera.base;

namespace tessera::cuda {
namespace {

/// Before it, backward is wrong where the keys are not a multiple of 128.
constexpr std::size_t oldest_version = 91600;
constexpr std::int64_t most_forward_dim = 256, most_backward_dim = 128;
/// Of the scores' gradients.
constexpr std::int64_t most_score_bytes = std::int64_t{1} << 30;
constexpr std::size_t spare_bytes = std::size_t{64} << 10;
constexpr std::int64_t alignment = 16;

/// The library's functions; the first one is null where it is not found.
const DnnApi& dnn_api() {
  static const DnnApi api = [] {
    const auto opened = open_functions<DnnApi>({"libcudnn.so.9"});
    if (!opened.lacks.empty()) {
      fail_input({.thing = "device 'cuda'",
                  .wrong = opened.lacks,
                  .advice = "install cuDNN 9.16 or later"});
    }
    return opened.api.value_or(DnnApi());
  }();
  return api;
}

/// The library's own words for the last error of this thread.
std::string last_error() {
  char text[512] = {};
  dnn_api().last_error(text, sizeof(text));
  return text;
}

void check(DnnStatus status, std::string_view call) {
  if (status != DnnStatus::success) [[unlikely]] {
    fail({.thing = "cuda",
          .wrong =
              fmt::format("{} fails: {} {}", call, dnn_api().status_string(status), last_error())});
  }
}

/// Numbers of the tensors that a call gives addresses for; those in between have larger ones.
enum class Id : std::int64_t {
  q = 1,
  k,
  v,
  y,
  dy,
  dq,
  dk,
  dv,
  log_sums,
  means,
  scale,
  lowest,
  one,
  window,
  between
};

DnnType type_of(DType type) { return type == DType::f16 ? DnnType::f16 : DnnType::bf16; }

using Extents = std::array<std::int64_t, 4>;  // batch, head, time, dim; of scores: key
Extents packed(const Extents& extents) {
  return {extents[1] * extents[2] * extents[3], extents[2] * extents[3], extents[3], 1};
}
Extents turned(const Extents& x) { return {x[0], x[1], x[3], x[2]}; }

}  // namespace

/// Makes the descriptors of a plan. The graphs are those of NVIDIA's cudnn-frontend
/// (scaled_dot_product_flash_attention.h), whose pattern the library's engines look for: another
/// order of operations that computes the same has no engine.
class DnnBuilder {
 public:
  DnnBuilder(const WatchedThread& watched, const DnnForm& form, DnnHandle handle, DnnPlan& plan)
      : watched_(watched), form_(form), handle_(handle), plan_(plan) {}

  void forward();
  void backward();
  /// False: the library has no engine that gives the same bits each time.
  bool choose(const std::string& device);
  /// The text of a device's properties: of the handle's, or of what the text describes.
  std::string describe(const std::string& device);

 private:
  using Descriptor = DnnDescriptor;

  /// The handle's device, or the one that the text describes.
  Descriptor make_device(const std::string& text);

  Descriptor make(DnnKind kind) {
    Descriptor made = nullptr;
    check(dnn_api().descriptor_create(kind, &made), "cudnnBackendCreateDescriptor");
    plan_.all_.push_back(made);
    return made;
  }
  template <class T>
  static void set(Descriptor of, DnnAttribute attribute, DnnValue type, std::span<const T> values) {
    check(
        dnn_api().set(of, attribute, type, static_cast<std::int64_t>(values.size()), values.data()),
        "cudnnBackendSetAttribute");
  }
  template <class T>
  static void set(Descriptor of, DnnAttribute attribute, DnnValue type, const T& value) {
    set(of, attribute, type, std::span<const T>(&value, 1));
  }
  static void set(Descriptor of, DnnAttribute attribute, Descriptor value) {
    set(of, attribute, DnnValue::descriptor, value);
  }
  void finish(Descriptor descriptor) {
    check(dnn_api().finalize(watched_, descriptor), "cudnnBackendFinalize");
  }

  Descriptor tensor(std::int64_t id, DnnType type, const Extents& extents, const Extents& strides,
                    bool is_virtual, bool is_by_value = false) {
    const Descriptor made = make(DnnKind::tensor);
    set(made, DnnAttribute::tensor_type, DnnValue::data_type, type);
    set(made, DnnAttribute::tensor_extents, DnnValue::i64, std::span<const std::int64_t>(extents));
    set(made, DnnAttribute::tensor_strides, DnnValue::i64, std::span<const std::int64_t>(strides));
    set(made, DnnAttribute::tensor_id, DnnValue::i64, id);
    set(made, DnnAttribute::tensor_alignment, DnnValue::i64, alignment);
    set(made, DnnAttribute::tensor_is_virtual, DnnValue::boolean, is_virtual);
    set(made, DnnAttribute::tensor_is_by_value, DnnValue::boolean, is_by_value);
    finish(made);
    return made;
  }
  Descriptor heads(Id id, std::int64_t count, std::size_t strides, bool as_columns = false) {
    const auto& [batch, time, head] = form_.strides[strides];
    const Extents extents = {form_.batches, count, form_.times, form_.dim};
    const Extents steps = {batch, head, time, 1};
    return tensor(static_cast<std::int64_t>(id), type_of(form_.type),
                  as_columns ? turned(extents) : extents, as_columns ? turned(steps) : steps,
                  false);
  }
  Descriptor between(DnnType type, const Extents& extents, const Extents& strides) {
    return tensor(next_++, type, extents, strides, true);
  }
  Descriptor between(DnnType type, const Extents& extents) {
    return between(type, extents, packed(extents));
  }
  Descriptor per_query(Id id) {
    return tensor(static_cast<std::int64_t>(id), DnnType::f32, rows(), packed(rows()), false);
  }
  Descriptor number(Id id) {
    constexpr Extents one = {1, 1, 1, 1};
    Descriptor& made = numbers_[id];
    if (made == nullptr) {
      made = tensor(static_cast<std::int64_t>(id), DnnType::f32, one, one, false, true);
    }
    return made;
  }
  Extents rows() const { return {form_.batches, form_.heads, form_.times, 1}; }
  Extents scores() const { return {form_.batches, form_.heads, form_.times, form_.times}; }

  Descriptor multiply(Descriptor a, Descriptor b, Descriptor y) {
    const Descriptor about = make(DnnKind::matmul);
    set(about, DnnAttribute::matmul_type, DnnValue::data_type, DnnType::f32);
    finish(about);
    const Descriptor operation = make(DnnKind::matmul_operation);
    set(operation, DnnAttribute::matmul_a, a);
    set(operation, DnnAttribute::matmul_b, b);
    set(operation, DnnAttribute::matmul_y, y);
    set(operation, DnnAttribute::matmul_description, about);
    return add(operation, y);
  }
  Descriptor apply(DnnPointwise mode, Descriptor x, Descriptor b, Descriptor y,
                   DnnType type = DnnType::f32, Descriptor condition = nullptr,
                   std::int64_t axis = -1) {
    const Descriptor about = make(DnnKind::pointwise);
    set(about, DnnAttribute::pointwise_mode, DnnValue::pointwise_mode, mode);
    set(about, DnnAttribute::pointwise_type, DnnValue::data_type, type);
    if (axis >= 0) {
      set(about, DnnAttribute::pointwise_axis, DnnValue::i64, axis);
    }
    finish(about);
    const Descriptor operation = make(DnnKind::pointwise_operation);
    set(operation, DnnAttribute::pointwise_description, about);
    set(operation, DnnAttribute::pointwise_x, x);
    set(operation, DnnAttribute::pointwise_y, y);
    if (b != nullptr) {
      set(operation, DnnAttribute::pointwise_b, b);
    }
    if (condition != nullptr) {
      set(operation, DnnAttribute::pointwise_condition, condition);
    }
    return add(operation, y);
  }
  Descriptor reduce(DnnReduction how, Descriptor x, Descriptor y) {
    const Descriptor about = make(DnnKind::reduction);
    set(about, DnnAttribute::reduction_operator, DnnValue::reduction, how);
    set(about, DnnAttribute::reduction_type, DnnValue::data_type, DnnType::f32);
    finish(about);
    const Descriptor operation = make(DnnKind::reduction_operation);
    set(operation, DnnAttribute::reduction_x, x);
    set(operation, DnnAttribute::reduction_y, y);
    set(operation, DnnAttribute::reduction_description, about);
    return add(operation, y);
  }
  Descriptor reshape(Descriptor x, Descriptor y) {
    const Descriptor operation = make(DnnKind::reshape_operation);
    set(operation, DnnAttribute::reshape_x, x);
    set(operation, DnnAttribute::reshape_y, y);
    return add(operation, y);
  }
  Descriptor add(Descriptor operation, Descriptor result) {
    finish(operation);
    operations_.push_back(operation);
    return result;
  }

  /// Of [.., query, key], f32.
  Descriptor on_scores(DnnPointwise mode, Descriptor x, Descriptor b = nullptr) {
    return apply(mode, x, b, between(DnnType::f32, scores()));
  }
  Descriptor masked(Descriptor x);
  /// Products with all query heads of a group, added up.
  void multiply_group(Descriptor a, Descriptor b, Descriptor y);

  const WatchedThread& watched_;
  const DnnForm& form_;
  DnnHandle handle_;
  DnnPlan& plan_;
  std::int64_t next_ = static_cast<std::int64_t>(Id::between);
  std::vector<Descriptor> operations_;
  std::map<Id, Descriptor> numbers_;
};

/// The lowest number where the query does not see the key.
DnnDescriptor DnnBuilder::masked(Descriptor x) {
  constexpr std::int64_t of_query = 2, of_key = 3;
  const auto places = [&](Descriptor of, std::int64_t axis) {
    return apply(DnnPointwise::index, of, nullptr, between(DnnType::i32, scores()), DnnType::f32,
                 nullptr, axis);
  };
  const auto select = [&](DnnPointwise mode, Descriptor a, Descriptor b, Descriptor of) {
    const Descriptor sees =
        apply(mode, a, b, between(DnnType::boolean, scores()), DnnType::boolean);
    return apply(DnnPointwise::select, of, number(Id::lowest), between(DnnType::f32, scores()),
                 DnnType::f32, sees);
  };
  const Descriptor queries = places(x, of_query);
  const Descriptor keys = places(x, of_key);
  const Descriptor causal = select(DnnPointwise::greater_or_equal, queries, keys, x);
  if (!form_.windowed) {
    return causal;
  }
  const Descriptor first = places(causal, of_query);
  const Descriptor last = apply(DnnPointwise::add, places(causal, of_key), number(Id::window),
                                between(DnnType::f32, scores()));
  return select(DnnPointwise::greater, last, first, causal);
}

void DnnBuilder::forward() {
  const Descriptor q = heads(Id::q, form_.heads, 0);
  const Descriptor k = heads(Id::k, form_.key_heads, 1, true);
  const Descriptor v = heads(Id::v, form_.key_heads, 2);
  const Descriptor y = heads(Id::y, form_.heads, 3);
  const Descriptor products = multiply(q, k, between(DnnType::f32, scores()));
  const Descriptor seen = masked(on_scores(DnnPointwise::mul, products, number(Id::scale)));
  const Descriptor top = reduce(DnnReduction::max, seen, between(DnnType::f32, rows()));
  const Descriptor powers = on_scores(DnnPointwise::exp, on_scores(DnnPointwise::sub, seen, top));
  const Descriptor sums = reduce(DnnReduction::add, powers, between(DnnType::f32, rows()));
  const Descriptor logarithms =
      apply(DnnPointwise::log, sums, nullptr, between(DnnType::f32, rows()));
  apply(DnnPointwise::add, top, logarithms, per_query(Id::log_sums));
  const Descriptor shares =
      apply(DnnPointwise::div, powers, sums, between(type_of(form_.type), scores()));
  multiply(shares, v, y);
}

void DnnBuilder::multiply_group(Descriptor a, Descriptor b, Descriptor y) {
  if (form_.heads == form_.key_heads) {
    multiply(a, b, y);
    return;
  }
  const Extents all = {form_.batches, form_.heads, form_.times, form_.dim};
  reduce(DnnReduction::add, multiply(a, b, between(type_of(form_.type), all)), y);
}

void DnnBuilder::backward() {
  const DnnType type = type_of(form_.type);
  const Descriptor q = heads(Id::q, form_.heads, 0);
  const Descriptor k = heads(Id::k, form_.key_heads, 1, true);
  const Descriptor v = heads(Id::v, form_.key_heads, 2, true);
  const Descriptor y = heads(Id::y, form_.heads, 3);
  const Descriptor dy = heads(Id::dy, form_.heads, 4);
  const Descriptor dq = heads(Id::dq, form_.heads, 5);
  const Descriptor dk = heads(Id::dk, form_.key_heads, 6);
  const Descriptor dv = heads(Id::dv, form_.key_heads, 7);
  const Extents all = {form_.batches, form_.heads, form_.times, form_.dim};
  const Extents by_time = {form_.heads * form_.times * form_.dim, form_.times * form_.dim,
                           form_.heads * form_.dim, 1};
  const Descriptor of_dims = apply(DnnPointwise::mul, dy, y, between(DnnType::f32, all, by_time));
  const Descriptor of_rows = reduce(DnnReduction::add, of_dims, between(DnnType::f32, rows()));
  const Descriptor means = apply(DnnPointwise::mul, of_rows, number(Id::one), per_query(Id::means));

  const Descriptor scale = number(Id::scale);
  const Descriptor products = multiply(q, k, between(DnnType::f32, scores()));
  const Descriptor scaled = on_scores(DnnPointwise::mul, products, scale);
  const Descriptor seen = masked(on_scores(DnnPointwise::sub, scaled, per_query(Id::log_sums)));
  const Descriptor shares = on_scores(DnnPointwise::exp, seen);
  const auto turned_scores = [&](Descriptor x) {
    return reshape(x, between(type, turned(scores()), turned(packed(scores()))));
  };
  multiply_group(turned_scores(shares), dy, dv);

  const Descriptor of_shares = multiply(dy, v, between(DnnType::f32, scores()));
  const Descriptor centred = on_scores(DnnPointwise::sub, of_shares, means);
  const Descriptor of_scores =
      on_scores(DnnPointwise::mul, on_scores(DnnPointwise::mul, centred, shares), scale);
  multiply_group(turned_scores(of_scores), q, dk);

  const auto& [batch, time, head] = form_.strides[1];
  const Extents keys = {form_.batches, form_.key_heads, form_.times, form_.dim};
  multiply(of_scores, reshape(k, between(DnnType::f32, keys, {batch, head, time, 1})), dq);
}

bool DnnBuilder::choose(const std::string& device) {
  const DnnApi& api = dnn_api();
  const Descriptor graph = make(DnnKind::graph);
  set(graph, DnnAttribute::graph_operations, DnnValue::descriptor,
      std::span<const Descriptor>(operations_));
  Descriptor properties = nullptr;
  if (handle_ != nullptr) {
    set(graph, DnnAttribute::graph_handle, DnnValue::handle, handle_);
  } else {
    properties = make_device(device);
  }
  finish(graph);
  for (const DnnHeuristic mode : {DnnHeuristic::usual, DnnHeuristic::fallback}) {
    const Descriptor heuristics = make(DnnKind::heuristics);
    set(heuristics, DnnAttribute::heuristics_graph, graph);
    set(heuristics, DnnAttribute::heuristics_mode, DnnValue::heuristic, mode);
    if (properties != nullptr) {
      set(heuristics, DnnAttribute::heuristics_device, properties);
    }
    finish(heuristics);
    std::array<Descriptor, 8> configs = {};
    for (Descriptor& config : configs) {
      config = make(DnnKind::engine_config);
    }
    std::int64_t count = 0;
    check(api.get(watched_, heuristics, DnnAttribute::heuristics_results, DnnValue::descriptor,
                  static_cast<std::int64_t>(configs.size()), &count, configs.data()),
          "cudnnBackendGetAttribute");
    for (const Descriptor config :
         std::span(configs).first(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)))) {
      Descriptor engine = make(DnnKind::engine);
      std::array<DnnNote, most_dnn_notes> notes = {};
      std::int64_t noted = 0;
      check(api.get(watched_, config, DnnAttribute::config_engine, DnnValue::descriptor, 1, &count,
                    &engine),
            "cudnnBackendGetAttribute");
      check(api.get(watched_, engine, DnnAttribute::engine_notes, DnnValue::numerical_note,
                    most_dnn_notes, &noted, notes.data()),
            "cudnnBackendGetAttribute");
      const auto known = std::span(notes).first(static_cast<std::size_t>(noted));
      if (std::ranges::find(known, DnnNote::not_deterministic) != known.end()) {
        continue;
      }
      const Descriptor plan = make(DnnKind::plan);
      set(plan, DnnAttribute::plan_config, config);
      if (properties != nullptr) {
        set(plan, DnnAttribute::plan_device, properties);
      } else {
        set(plan, DnnAttribute::plan_handle, DnnValue::handle, handle_);
      }
      std::int64_t bytes = 0;
      if (api.finalize(watched_, plan) == DnnStatus::success &&
          api.get(watched_, plan, DnnAttribute::plan_workspace, DnnValue::i64, 1, &count, &bytes) ==
              DnnStatus::success) {
        plan_.plan_ = plan;
        plan_.workspace_ = static_cast<std::size_t>(bytes);
        return true;
      }
    }
  }
  return false;
}

DnnDescriptor DnnBuilder::make_device(const std::string& text) {
  const Descriptor properties = make(DnnKind::device);
  if (text.empty()) {
    set(properties, DnnAttribute::device_handle, DnnValue::handle, handle_);
  } else {
    set(properties, DnnAttribute::device_text, DnnValue::character, std::span<const char>(text));
  }
  finish(properties);
  return properties;
}

std::string DnnBuilder::describe(const std::string& device) {
  const Descriptor properties = make_device(device);
  std::string text;
  std::int64_t bytes = 0;
  const auto read = [&](std::int64_t most) {
    check(dnn_api().get(watched_, properties, DnnAttribute::device_text, DnnValue::character, most,
                        &bytes, most == 0 ? nullptr : text.data()),
          "cudnnBackendGetAttribute");
  };
  read(0);  // how long it is
  text.resize(static_cast<std::size_t>(bytes));
  read(bytes);
  text.resize(std::min(text.size(), text.find('\0')));
  return text;
}

std::string DnnPlan::describe(const WatchedThread& watched, DnnHandle handle,
                              const std::string& device) {
  const DnnForm none;
  DnnPlan descriptors;
  std::string text = DnnBuilder(watched, none, handle, descriptors).describe(device);
  descriptors.destroy(watched);
  return text;
}

std::unique_ptr<DnnPlan> DnnPlan::make(const WatchedThread& watched, const DnnForm& form,
                                       DnnHandle handle, const std::string& device,
                                       std::string* reason) {
  std::unique_ptr<DnnPlan> plan(new DnnPlan);
  DnnBuilder builder(watched, form, handle, *plan);
  form.backward ? builder.backward() : builder.forward();
  if (builder.choose(device)) {
    return plan;
  }
  if (reason != nullptr) {
    *reason = last_error();
  }
  plan->destroy(watched);
  return nullptr;
}

void DnnPlan::destroy(const WatchedThread& watched) {
  for (auto made = all_.rbegin(); made != all_.rend(); ++made) {
    dnn_api().descriptor_destroy(watched, *made);
  }
  all_.clear();
}

std::size_t Dnn::version() { return dnn_api().version ? dnn_api().version() : 0; }

bool Dnn::is_wanted() {
  const char* const variable = std::getenv("TESSERA_CUDA_ATTENTION");
  const std::string_view choice = variable == nullptr ? "auto" : variable;
  if (choice != "auto" && choice != "own") {
    fail_input({.thing = "TESSERA_CUDA_ATTENTION",
                .wrong = "is not a way to compute attention",
                .expected = "auto or own",
                .got = std::string(choice)});
  }
  return choice == "auto" && version() >= oldest_version;
}

Dnn::Dnn(const WatchedThread& watched, CallWatch watch) : watch_(std::move(watch)) {
  check(dnn_api().create(watched, &handle_), "cudnnCreate");
  const char* const file = std::getenv("TESSERA_CUDA_DNN_DEVICE");
  if (file == nullptr || *file == '\0') {
    return;
  }
  if (const std::string problem = write_file(file, DnnPlan::describe(watched, handle_));
      !problem.empty()) {
    fail_input({.thing = "TESSERA_CUDA_DNN_DEVICE",
                .wrong = fmt::format("{} cannot be written: {}", file, problem)});
  }
}

bool Dnn::takes(const AttentionArguments& a, bool backward) {
  const std::int64_t heads = a.key_heads * a.group;
  const auto is_packed = [&](const HeadArray& x) {
    return x.type == DType::f32 && x.time == 1 && x.head == a.queries &&
           x.batch == heads * a.queries;
  };
  return (a.q.type == DType::bf16 || a.q.type == DType::f16) && a.queries == a.keys &&
         a.queries > 1 && a.shift == 0 && a.head_dim == a.value_dim && a.head_dim > 0 &&
         a.head_dim % 8 == 0 && a.head_dim <= (backward ? most_backward_dim : most_forward_dim) &&
         a.batches * heads > 0 && a.softcap == 0 && a.documents.data == nullptr &&
         is_packed(a.log_sums) &&
         (!backward || a.batches * heads * a.keys * a.keys * 2 <= most_score_bytes);
}

std::size_t Dnn::workspace_bytes(std::int64_t batches, std::int64_t times, std::int64_t heads,
                                 std::int64_t key_heads, std::int64_t dim, bool backward) {
  if (!backward) {
    return spare_bytes;
  }
  const std::int64_t tiles = (times + 63) / 64 * 64;
  const std::int64_t of_heads = key_heads == heads ? 0 : 2 * times * dim;
  return spare_bytes + static_cast<std::size_t>(2 * batches * heads * (tiles * tiles + of_heads));
}

namespace {

/// Addresses and numbers of one call; they live as long as the library may read them.
class DnnPack {
 public:
  DnnPack(const AttentionArguments& a, const DnnForm& form, std::byte* workspace)
      : scale_(static_cast<float>(a.scale)), window_(static_cast<float>(a.window)) {
    const DnnApi& api = dnn_api();
    give(Id::q, a.q.data);
    give(Id::k, a.k.data);
    give(Id::v, a.v.data);
    give(Id::y, a.y.data);
    give(Id::log_sums, a.log_sums.data);
    give(Id::scale, &scale_);
    give(Id::lowest, &lowest);
    if (form.windowed) {
      give(Id::window, &window_);
    }
    if (form.backward) {
      give(Id::dy, a.dy.data);
      give(Id::dq, a.dq.data);
      give(Id::dk, a.dk.data);
      give(Id::dv, a.dv.data);
      give(Id::means, a.means.data);
      give(Id::one, &one);
    }
    check(api.descriptor_create(DnnKind::pack, &pack_), "cudnnBackendCreateDescriptor");
    const auto count = static_cast<std::int64_t>(ids_.size());
    const void* const space = workspace;
    check(api.set(pack_, DnnAttribute::pack_ids, DnnValue::i64, count, ids_.data()),
          "cudnnBackendSetAttribute");
    check(api.set(pack_, DnnAttribute::pack_addresses, DnnValue::address, count, addresses_.data()),
          "cudnnBackendSetAttribute");
    check(api.set(pack_, DnnAttribute::pack_workspace, DnnValue::address, 1, &space),
          "cudnnBackendSetAttribute");
    check(api.pack_finalize(pack_), "cudnnBackendFinalize");
  }
  DnnPack(const DnnPack&) = delete;
  DnnPack& operator=(const DnnPack&) = delete;
  ~DnnPack() { dnn_api().pack_destroy(pack_); }

  DnnDescriptor descriptor() const { return pack_; }

 private:
  static constexpr float lowest = std::numeric_limits<float>::lowest();
  static constexpr float one = 1;

  void give(Id id, const void* address) {
    ids_.push_back(static_cast<std::int64_t>(id));
    addresses_.push_back(address);
  }

  const float scale_, window_;
  std::vector<std::int64_t> ids_;
  std::vector<const void*> addresses_;
  DnnDescriptor pack_ = nullptr;
};

}  // namespace

bool Dnn::attention(StreamHandle stream, const AttentionArguments& a, bool backward,
                    std::byte* workspace, std::size_t bytes) {
  const auto steps = [](const HeadArray& x) {
    return std::array<std::int64_t, 3>{x.batch, x.time, x.head};
  };
  DnnForm form = {.backward = backward,
                  .type = a.q.type,
                  .batches = a.batches,
                  .times = a.queries,
                  .heads = a.key_heads * a.group,
                  .key_heads = a.key_heads,
                  .dim = a.head_dim,
                  .windowed = a.window > 0 && a.window < a.keys,
                  .strides = {steps(a.q), steps(a.k), steps(a.v), steps(a.y)}};
  if (backward) {
    std::ranges::copy(std::array{steps(a.dy), steps(a.dq), steps(a.dk), steps(a.dv)},
                      form.strides.begin() + 4);
  }
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<DnnPlan> plan = plan_for(form);
  if (plan == nullptr || plan->workspace() > bytes) {
    return false;
  }
  const auto pack = std::make_shared<const DnnPack>(a, form, workspace);
  const DnnApi& api = dnn_api();
  check(api.set_stream(handle_, stream), "cudnnSetStream");
  if (plan->is_loaded()) {
    check(api.execute(handle_, plan->descriptor(), pack->descriptor()), "cudnnBackendExecute");
    return true;
  }
  return watch_.call(
      "cudnnBackendExecute", [&api, handle = handle_, plan, pack](const WatchedThread& watched) {
        check(api.first_execute(watched, handle, plan->descriptor(), pack->descriptor()),
              "cudnnBackendExecute");
        plan->set_loaded();
        return true;
      });
}

/// The plan of a form, which is made at its first use; null: there is none.
std::shared_ptr<DnnPlan> Dnn::plan_for(const DnnForm& form) {
  if (const auto* kept = plans_.find(form)) [[likely]] {
    return *kept;
  }
  const auto destroy = [watch = watch_](DnnPlan* plan) {
    watch.end("cudnnBackendDestroyDescriptor",
              [held = std::shared_ptr<DnnPlan>(plan)](const WatchedThread& watched) {
                held->destroy(watched);
              });
  };
  std::unique_ptr<DnnPlan> made =
      watch_.call("a plan of cuDNN (cudnnBackendFinalize)",
                  [form, handle = handle_](const WatchedThread& watched) {
                    return DnnPlan::make(watched, form, handle);
                  });
  std::shared_ptr<DnnPlan> plan;
  if (made != nullptr) {
    plan.reset(made.release(), destroy);
  }
  return plans_.insert(form, std::move(plan));
}

}  // namespace tessera::cuda
