#include "kernels/cuda/cublas_lt.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "base/device_block.h"
#include "base/error.h"
#include "base/launch.h"
#include "base/rounding.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/library_search.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

constexpr auto kWorkspaceBytes = static_cast<std::size_t>(kGemmWorkspaceBytes);

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

// The functions used, by the headers' own types.
struct Functions {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusString) status_text;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoCheck) check;
  decltype(&cublasLtMatmul) matmul;
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, Functions& f) {
  return find(library, "cublasLtCreate", f.create) && find(library, "cublasLtDestroy", f.destroy) &&
         find(library, "cublasLtGetStatusString", f.status_text) &&
         find(library, "cublasLtMatmulDescCreate", f.desc_create) &&
         find(library, "cublasLtMatmulDescDestroy", f.desc_destroy) &&
         find(library, "cublasLtMatmulDescSetAttribute", f.desc_set) &&
         find(library, "cublasLtMatrixLayoutCreate", f.layout_create) &&
         find(library, "cublasLtMatrixLayoutDestroy", f.layout_destroy) &&
         find(library, "cublasLtMatmulPreferenceCreate", f.preference_create) &&
         find(library, "cublasLtMatmulPreferenceDestroy", f.preference_destroy) &&
         find(library, "cublasLtMatmulPreferenceSetAttribute", f.preference_set) &&
         find(library, "cublasLtMatmulAlgoGetHeuristic", f.heuristic) &&
         find(library, "cublasLtMatmulAlgoCheck", f.check) &&
         find(library, "cublasLtMatmul", f.matmul);
}

// Of the major version whose headers this was built with alone: its structures are part of the
// calls. Null, and says what was tried.
Library open_library(std::string& refusal) {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  const LibrarySearch search = find_cuda_library(
      name, CUBLAS_VER_MAJOR, "TRIPHASE_CUBLASLT", [](const std::string& variable) {
        const char* value = std::getenv(variable.c_str());
        return std::string(value == nullptr ? "" : value);
      });
  std::vector<std::string> reasons;
  for (const std::string& file : search.files) {
    Library library(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL));
    if (library != nullptr) return library;
    reasons.emplace_back(dlerror());
  }
  refusal = search_refusal(search, name, reasons);
  return nullptr;
}

// The library file that has the function; empty where the system does not say.
std::string file_of(void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

cudaDataType_t library_type(DType dtype) {
  return dtype == DType::kF16 ? CUDA_R_16F : dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}

// Rows for which the library is asked when a product has so many or a few less. To ask, and to load
// a kernel that has not run before, takes milliseconds, and each step may have other rows.
std::int64_t asked_rows(std::int64_t rows) {
  const std::int64_t unit = rows <= 64 ? 8 : rows <= 256 ? 32 : rows <= 2048 ? 128 : 512;
  return round_up(rows, unit);
}

// Owns one opaque object of the library.
template <class Handle>
class Owned {
 public:
  explicit Owned(cublasStatus_t (*destroy)(Handle)) : destroy_(destroy) {}
  ~Owned() {
    if (handle_ != nullptr) (void)destroy_(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle* out() { return &handle_; }
  Handle get() const { return handle_; }

 private:
  cublasStatus_t (*destroy_)(Handle);
  Handle handle_ = nullptr;
};

class CublasLtGemm final : public Gemm {
 public:
  CublasLtGemm(Library library, const Functions& functions, cublasLtHandle_t handle, Device& device)
      : library_(std::move(library)),
        f_(functions),
        handle_(handle),
        workspace_(device, kWorkspaceBytes) {}
  ~CublasLtGemm() override { (void)f_.destroy(handle_); }

  [[nodiscard]] std::string_view name() const override { return "cuBLASLt"; }
  [[nodiscard]] std::string origin() const override {
    const std::string file = file_of(reinterpret_cast<void*>(f_.matmul));
    return fmt::format("cuBLASLt {}{}{}", CUBLAS_VER_MAJOR, file.empty() ? "" : ", ", file);
  }

  // The library is column-major: y^T [N, M] = w [N, K] x^T [K, M], with w transposed on reading.
  [[nodiscard]] bool run(ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate, Matrix y,
                         StreamHandle stream) override {
    require(x.dtype == w.dtype && x.cols == w.cols && y.rows == x.rows && y.cols == w.rows,
            "cuBLASLt", "y must be x times w transposed, of one type", [&] {
              return shape_text({{"x", x}, {"w", w}, {"y", y}});
            });
    Choice* choice = choose(x, w, bias, y);
    if (choice == nullptr) return false;
    const float beta = accumulate ? 1.0F : 0.0F;
    if (stream == nullptr) {
      multiply(this, choice, x.data, w.data, bias, y.data, beta, nullptr);
    } else {
      add_call<&CublasLtGemm::multiply>(*stream, "cuBLASLt", this, choice, x.data, w.data, bias,
                                        y.data, beta);
    }
    return true;
  }

 private:
  using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                           std::int64_t, DType, bool, std::uintptr_t>;

  // What the library is called with for one shape.
  struct Choice {
    explicit Choice(const Functions& f)
        : product(f.desc_destroy), w(f.layout_destroy), x(f.layout_destroy), y(f.layout_destroy) {}
    Owned<cublasLtMatmulDesc_t> product;
    Owned<cublasLtMatrixLayout_t> w;
    Owned<cublasLtMatrixLayout_t> x;
    Owned<cublasLtMatrixLayout_t> y;
    std::array<std::int64_t, 3> size{};  // rows, columns, depth
    std::optional<cublasLtMatmulAlgo_t> algorithm;
  };
  static void multiply(CublasLtGemm* gemm, Choice* choice, const void* x, const void* w,
                       const float* bias, void* y, float beta, cudaStream_t stream) {
    if (bias != nullptr) gemm->set_bias(*choice, bias);
    const float one = 1.0F;
    gemm->check(
        gemm->f_.matmul(gemm->handle_, choice->product.get(), &one, w, choice->w.get(), x,
                        choice->x.get(), &beta, y, choice->y.get(), y, choice->y.get(),
                        &*choice->algorithm, gemm->workspace_.data(), kWorkspaceBytes, stream),
        *choice);
  }

  void set_bias(Choice& choice, const float* bias) {
    check(f_.desc_set(choice.product.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)),
          choice);
  }

  // Alignment that an algorithm may count on: of all addresses together, up to 256 bytes.
  static std::uintptr_t alignment_of(const void* x, const void* w, const void* y) {
    const auto bits = reinterpret_cast<std::uintptr_t>(x) | reinterpret_cast<std::uintptr_t>(w) |
                      reinterpret_cast<std::uintptr_t>(y) | 256U;
    return bits & (~bits + 1);
  }

  void describe(Choice& choice, Owned<cublasLtMatrixLayout_t>& out, const ConstMatrix& matrix) {
    check(f_.layout_create(out.out(), library_type(matrix.dtype),
                           static_cast<std::uint64_t>(matrix.cols),
                           static_cast<std::uint64_t>(matrix.rows), matrix.row_stride),
          choice);
  }

  // Made once for a shape, and kept. Null: the library has no kernel for it.
  Choice* choose(const ConstMatrix& x, const ConstMatrix& w, const float* bias, const Matrix& y) {
    const std::uintptr_t alignment = alignment_of(x.data, w.data, y.data);
    Shape shape{x.rows,       w.rows,  x.cols,          x.row_stride, w.row_stride,
                y.row_stride, w.dtype, bias != nullptr, alignment};
    const auto [known, is_new] = choices_.try_emplace(shape, f_);
    Choice& choice = known->second;
    if (is_new) {
      describe(choice, x, w, bias, y);
      std::int64_t& rows = std::get<0>(shape);
      rows = asked_rows(rows);
      const auto [asked, is_first] = algorithms_.try_emplace(shape);
      if (is_first) asked->second = ask_for(rows, x, w, bias, y, alignment);
      choice.algorithm = asked->second;
      if (choice.algorithm && !can_run(choice)) choice.algorithm = ask(choice, alignment);
    }
    return choice.algorithm ? &choice : nullptr;
  }

  void describe(Choice& choice, const ConstMatrix& x, const ConstMatrix& w, const float* bias,
                const ConstMatrix& y) {
    choice.size = {y.rows, y.cols, x.cols};
    check(f_.desc_create(choice.product.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F), choice);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(f_.desc_set(choice.product.get(), CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                      sizeof(transposed)),
          choice);
    if (bias != nullptr) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      check(f_.desc_set(choice.product.get(), CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                        sizeof(epilogue)),
            choice);
      set_bias(choice, bias);
    }
    describe(choice, choice.w, w);
    describe(choice, choice.x, x);
    describe(choice, choice.y, y);
  }

  // The library's first choice for a product of so many rows that is else this one.
  std::optional<cublasLtMatmulAlgo_t> ask_for(std::int64_t rows, ConstMatrix x,
                                              const ConstMatrix& w, const float* bias,
                                              ConstMatrix y, std::uintptr_t alignment) {
    x.rows = rows;
    y.rows = rows;
    Choice choice(f_);
    describe(choice, x, w, bias, y);
    return ask(choice, alignment);
  }

  std::optional<cublasLtMatmulAlgo_t> ask(const Choice& choice, std::uintptr_t alignment) {
    Owned<cublasLtMatmulPreference_t> preference(f_.preference_destroy);
    check(f_.preference_create(preference.out()), choice);
    const std::uint64_t bytes = kWorkspaceBytes;
    check(f_.preference_set(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                            sizeof(bytes)),
          choice);
    const auto least = static_cast<std::uint32_t>(alignment);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      check(f_.preference_set(preference.get(), attribute, &least, sizeof(least)), choice);
    }
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status =
        f_.heuristic(handle_, choice.product.get(), choice.w.get(), choice.x.get(), choice.y.get(),
                     choice.y.get(), preference.get(), 1, &result, &found);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, choice);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0) return std::nullopt;
    return result.algo;
  }

  // Whether an algorithm that was found for other rows serves this product too.
  [[nodiscard]] bool can_run(const Choice& choice) const {
    cublasLtMatmulHeuristicResult_t result{};
    return f_.check(handle_, choice.product.get(), choice.w.get(), choice.x.get(), choice.y.get(),
                    choice.y.get(), &*choice.algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= kWorkspaceBytes;
  }

  void check(cublasStatus_t status, const Choice& choice) const {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw Error(ErrorRole::kDevice, "E-DEV-CUDA", "GPU")
        .found(fmt::format("cuBLASLt, {} x {}, depth {}: {}", choice.size[0], choice.size[1],
                           choice.size[2], f_.status_text(status)))
        .hint("finished records are kept; the same command resumes");
  }

  Library library_;
  Functions f_;
  cublasLtHandle_t handle_;
  DeviceBlock workspace_;
  std::map<Shape, Choice> choices_;
  std::map<Shape, std::optional<cublasLtMatmulAlgo_t>> algorithms_;  // rows: asked_rows()
};

}  // namespace

std::unique_ptr<Gemm> load_cublas_lt(Device& device, std::string& refusal) {
  Library library = open_library(refusal);
  if (library == nullptr) return nullptr;
  Functions functions{};
  if (!find_all(library.get(), functions)) {
    refusal = "libcublasLt lacks a function that this program calls";
    return nullptr;
  }
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t status = functions.create(&handle);
  if (status != CUBLAS_STATUS_SUCCESS) {
    refusal = fmt::format("cublasLtCreate: {}", functions.status_text(status));
    return nullptr;
  }
  return std::make_unique<CublasLtGemm>(std::move(library), functions, handle, device);
}

}  // namespace triphase::cuda
