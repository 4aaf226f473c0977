// dense: every token of the context.

#include "scheduler/attention/method_options.h"

namespace triphase {

AttentionInfo dense_info() { return {.keep_expected = "0 with --attention dense"}; }

}  // namespace triphase
