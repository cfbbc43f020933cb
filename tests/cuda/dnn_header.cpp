// What the plugin declares of cuDNN has the values of its header.
#include <cudnn_graph.h>

#include "dnn_api.hpp"

namespace {

using namespace tessera::cuda;

template <class Ours, class Theirs>
constexpr bool is(Ours ours, Theirs theirs) {
  return sizeof(Ours) == sizeof(Theirs) && static_cast<int>(ours) == static_cast<int>(theirs);
}

static_assert(is(DnnStatus::not_initialized, CUDNN_STATUS_NOT_INITIALIZED));
static_assert(is(DnnStatus::bad_parameter, CUDNN_STATUS_BAD_PARAM));
static_assert(is(DnnStatus::not_supported, CUDNN_STATUS_NOT_SUPPORTED));
static_assert(is(DnnStatus::execution_failed, CUDNN_STATUS_EXECUTION_FAILED));

static_assert(is(DnnKind::pointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR));
static_assert(is(DnnKind::engine, CUDNN_BACKEND_ENGINE_DESCRIPTOR));
static_assert(is(DnnKind::engine_config, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
static_assert(is(DnnKind::heuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
static_assert(is(DnnKind::plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
static_assert(is(DnnKind::pointwise_operation, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR));
static_assert(is(DnnKind::graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
static_assert(is(DnnKind::pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
static_assert(is(DnnKind::tensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR));
static_assert(is(DnnKind::matmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR));
static_assert(is(DnnKind::matmul_operation, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR));
static_assert(is(DnnKind::reduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR));
static_assert(is(DnnKind::reduction_operation, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR));
static_assert(is(DnnKind::reshape_operation, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR));

static_assert(is(DnnValue::handle, CUDNN_TYPE_HANDLE));
static_assert(is(DnnValue::data_type, CUDNN_TYPE_DATA_TYPE));
static_assert(is(DnnValue::boolean, CUDNN_TYPE_BOOLEAN) && is(DnnValue::i64, CUDNN_TYPE_INT64));
static_assert(is(DnnValue::address, CUDNN_TYPE_VOID_PTR));
static_assert(is(DnnValue::heuristic, CUDNN_TYPE_HEUR_MODE));
static_assert(is(DnnValue::numerical_note, CUDNN_TYPE_NUMERICAL_NOTE));
static_assert(is(DnnValue::pointwise_mode, CUDNN_TYPE_POINTWISE_MODE));
static_assert(is(DnnValue::descriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR));
static_assert(is(DnnValue::reduction, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE));
static_assert(is(DnnValue::character, CUDNN_TYPE_CHAR));

using A = DnnAttribute;
static_assert(is(A::pointwise_mode, CUDNN_ATTR_POINTWISE_MODE));
static_assert(is(A::pointwise_type, CUDNN_ATTR_POINTWISE_MATH_PREC));
static_assert(is(A::pointwise_axis, CUDNN_ATTR_POINTWISE_AXIS));
static_assert(is(A::heuristics_mode, CUDNN_ATTR_ENGINEHEUR_MODE));
static_assert(is(A::heuristics_graph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
static_assert(is(A::heuristics_results, CUDNN_ATTR_ENGINEHEUR_RESULTS));
static_assert(is(A::config_engine, CUDNN_ATTR_ENGINECFG_ENGINE));
static_assert(is(A::plan_config, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
static_assert(is(A::plan_workspace, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
static_assert(is(A::pointwise_description, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR));
static_assert(is(A::pointwise_x, CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
static_assert(is(A::pointwise_b, CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
static_assert(is(A::pointwise_y, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
static_assert(is(A::pointwise_condition, CUDNN_ATTR_OPERATION_POINTWISE_TDESC));
static_assert(is(A::graph_operations, CUDNN_ATTR_OPERATIONGRAPH_OPS));
static_assert(is(A::tensor_alignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT));
static_assert(is(A::tensor_type, CUDNN_ATTR_TENSOR_DATA_TYPE));
static_assert(is(A::tensor_extents, CUDNN_ATTR_TENSOR_DIMENSIONS));
static_assert(is(A::tensor_strides, CUDNN_ATTR_TENSOR_STRIDES));
static_assert(is(A::tensor_id, CUDNN_ATTR_TENSOR_UNIQUE_ID));
static_assert(is(A::tensor_is_virtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL));
static_assert(is(A::tensor_is_by_value, CUDNN_ATTR_TENSOR_IS_BY_VALUE));
static_assert(is(A::pack_ids, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS));
static_assert(is(A::pack_addresses, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS));
static_assert(is(A::pack_workspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
static_assert(is(A::engine_notes, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE));
static_assert(is(A::matmul_type, CUDNN_ATTR_MATMUL_COMP_TYPE));
static_assert(is(A::matmul_a, CUDNN_ATTR_OPERATION_MATMUL_ADESC));
static_assert(is(A::matmul_b, CUDNN_ATTR_OPERATION_MATMUL_BDESC));
static_assert(is(A::matmul_y, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
static_assert(is(A::matmul_description, CUDNN_ATTR_OPERATION_MATMUL_DESC));
static_assert(is(A::reduction_operator, CUDNN_ATTR_REDUCTION_OPERATOR));
static_assert(is(A::reduction_type, CUDNN_ATTR_REDUCTION_COMP_TYPE));
static_assert(is(A::reduction_x, CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
static_assert(is(A::reduction_y, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
static_assert(is(A::reduction_description, CUDNN_ATTR_OPERATION_REDUCTION_DESC));
static_assert(is(A::reshape_x, CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
static_assert(is(A::reshape_y, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));

#if CUDNN_VERSION >= 90800
static_assert(is(DnnKind::device, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
static_assert(is(A::heuristics_device, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP));
static_assert(is(A::plan_device, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP));
static_assert(is(A::device_handle, CUDNN_ATTR_DEVICEPROP_HANDLE));
static_assert(is(A::device_text, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION));
#endif

static_assert(is(DnnType::f32, CUDNN_DATA_FLOAT) && is(DnnType::f16, CUDNN_DATA_HALF));
static_assert(is(DnnType::i32, CUDNN_DATA_INT32) && is(DnnType::bf16, CUDNN_DATA_BFLOAT16));
static_assert(is(DnnType::boolean, CUDNN_DATA_BOOLEAN));
static_assert(is(DnnPointwise::add, CUDNN_POINTWISE_ADD));
static_assert(is(DnnPointwise::mul, CUDNN_POINTWISE_MUL));
static_assert(is(DnnPointwise::div, CUDNN_POINTWISE_DIV));
static_assert(is(DnnPointwise::sub, CUDNN_POINTWISE_SUB));
static_assert(is(DnnPointwise::exp, CUDNN_POINTWISE_EXP));
static_assert(is(DnnPointwise::log, CUDNN_POINTWISE_LOG));
static_assert(is(DnnPointwise::greater, CUDNN_POINTWISE_CMP_GT));
static_assert(is(DnnPointwise::greater_or_equal, CUDNN_POINTWISE_CMP_GE));
static_assert(is(DnnPointwise::index, CUDNN_POINTWISE_GEN_INDEX));
static_assert(is(DnnPointwise::select, CUDNN_POINTWISE_BINARY_SELECT));
static_assert(is(DnnReduction::add, CUDNN_REDUCE_TENSOR_ADD));
static_assert(is(DnnReduction::max, CUDNN_REDUCE_TENSOR_MAX));
static_assert(is(DnnHeuristic::usual, CUDNN_HEUR_MODE_A));
static_assert(is(DnnHeuristic::fallback, CUDNN_HEUR_MODE_FALLBACK));
static_assert(is(DnnNote::not_deterministic, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC));
static_assert(most_dnn_notes == CUDNN_NUMERICAL_NOTE_TYPE_COUNT);

}  // namespace
