// AccumulatingProducts: where a captured step computes a gradient of a linear layer, or of an
// embedding (the product with rows of zeros and a one), and adds it to another tensor (over
// micro-batches, or where several layers read one tensor), the product adds to that tensor itself.
// So the product's result takes no memory and is not read again. A sum that the product forms has
// other roundings than a product and a sum after it: this keeps no bits. Of 16 bits that are added
// to f32, the product is not rounded at all.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.passes;
import tessera.plugin;

namespace {

using namespace tessera;

class AccumulatingProducts {
 public:
  explicit AccumulatingProducts(Program& program)
      : program_(program), known_(program), places_(graph::places_of(program)) {
    for (const PlaceIndex place : places_.keys()) {
      for (const TensorIndex number : places_[place]->in) {
        ++uses_[number];
      }
      for (const TensorIndex number : places_[place]->out) {
        made_[number] = place;
      }
    }
    for (const auto& [name, number] : program.outputs) {
      ++uses_[number];
    }
  }

  void run() {
    ByPlace<bool> removed(places_.size(), false);
    std::map<PlaceIndex, Instruction> instead;
    for (const PlaceIndex place : places_.keys()) {
      if (const std::optional<Term> term = product_added_at(place)) {
        const Instruction& product = *places_[term->product];
        Instruction& sum = instead[place];
        const Op& form = *in_place_form(product);
        sum = {.op = &form, .in = {places_[place]->in[0]}, .scope = product.scope};
        std::ranges::copy_n(product.in.begin(), std::ssize(form.operands) - 1,
                            std::back_inserter(sum.in));
        if (form.arguments != nullptr) {
          sum.attributes = product.attributes;
        }
        removed[term->product] = true;
        if (term->cast.exists()) {
          removed[term->cast] = true;
        }
      }
    }
    rewrite(removed, instead);
  }

 private:
  /// A product that is added to a tensor, by way of a cast or without.
  struct Term {
    PlaceIndex product;
    PlaceIndex cast;
  };

  /// The operator that adds the product to its operand 0, before the product's own; null: none. It
  /// has none for the result's shape and no argument for its type, as these are the sum's.
  static const Op* in_place_form(const Instruction& i) {
    static const std::map<const Op*, const Op*> forms = {
        {&find_op("linear_grad_weight"), &find_op("linear_grad_weight_")},
        {&find_op("linear_grad_input"), &find_op("linear_grad_input_")},
        {&find_op("scaled_linear_grad_weight"), &find_op("scaled_linear_grad_weight_")},
        {&find_op("scaled_linear_grad_input"), &find_op("scaled_linear_grad_input_")},
        {&find_op("embedding_backward"), &find_op("embedding_backward_")}};
    const auto found = forms.find(i.op);
    return i.kind == Instruction::Kind::call && found != forms.end() ? found->second : nullptr;
  }
  static bool is_call(const Instruction& i, const Op& op) {
    return i.kind == Instruction::Kind::call && i.op == &op;
  }

  /// What made a tensor that is used nowhere else; none where there is no such place.
  PlaceIndex only_for_use(TensorIndex number) const {
    const auto found = made_.find(number);
    return found == made_.end() || uses_.at(number) != 1 ? PlaceIndex() : found->second;
  }

  std::optional<Term> product_added_at(PlaceIndex place) const {
    struct AddArgs {
      Dynamic<double> alpha;
    };
    const Instruction& add = *places_[place];
    if (!is_call(add, find_op("add_")) || !add.bindings.empty() ||
        static_cast<double>(arguments_as<AddArgs>(add.attributes).alpha) != 1) {
      return std::nullopt;
    }
    Term term{.product = only_for_use(add.in[1]), .cast = {}};
    if (term.product.exists() && is_call(*places_[term.product], find_op("cast"))) {
      term = {.product = only_for_use(places_[term.product]->in[0]), .cast = term.product};
    }
    if (!term.product.exists() || in_place_form(*places_[term.product]) == nullptr ||
        !fits(add.in[0], *places_[term.product]) || !may_move(term, place)) {
      return std::nullopt;
    }
    return term;
  }

  /// Whether the product can add to a tensor of this shape and type.
  bool fits(TensorIndex sum, const Instruction& product) const {
    const ProgramTensor& into = program_.tensors[sum];
    const ProgramTensor& added = program_.tensors[product.out[0]];
    const bool is_wider = into.dtype == DType::f32 && size_of(added.dtype) == 2;
    const auto shares = [&](TensorIndex operand) {
      return known_.memory_of(operand) == known_.memory_of(sum);
    };
    return into.shape == added.shape && (into.dtype == added.dtype || is_wider) &&
           std::ranges::none_of(product.in, shares);
  }

  /// Whether the product has the same operands where its result is added.
  bool may_move(const Term& term, PlaceIndex add) const {
    for (PlaceIndex between = term.product + 1; between < add; ++between) {
      if (between != term.cast && known_.conflict(term.product, between)) {
        return false;
      }
    }
    return section_of(term.product) == section_of(add);
  }

  std::size_t section_of(PlaceIndex place) const {
    std::size_t section = 0;
    auto left = static_cast<std::size_t>(place.number);
    while (left >= program_.sections[section].instructions.size()) {
      left -= program_.sections[section++].instructions.size();
    }
    return section;
  }

  void rewrite(const ByPlace<bool>& removed, std::map<PlaceIndex, Instruction>& instead) {
    PlaceIndex place(0);
    for (Section& section : program_.sections) {
      std::vector<Instruction> kept;
      for (Instruction& i : section.instructions) {
        const auto found = instead.find(place);
        if (!removed[place]) {
          kept.push_back(std::move(found == instead.end() ? i : found->second));
        }
        ++place;
      }
      section.instructions = std::move(kept);
    }
  }

  Program& program_;
  graph::Analysis known_;
  ByPlace<const Instruction*> places_;
  std::map<TensorIndex, int> uses_;
  std::map<TensorIndex, PlaceIndex> made_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<graph::Change>("AccumulatingProducts", [] {
    return graph::Change{
        .name = "AccumulatingProducts",
        .about =
            "Gradients of linear layers and embeddings are added in the product that computes "
            "them.",
        .run = [](graph::Editor& edit) { AccumulatingProducts(edit.program()).run(); }};
  });
}
