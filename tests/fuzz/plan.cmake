# Fuzz targets of profiles, plans and key clusters.
triphase_fuzz_library(fuzz_plan_files
  "${root}/runtime/plan/plan_file.cpp"
  "${root}/runtime/plan/profile_file.cpp"
  "${root}/scheduler/cost/grid_table.cpp"
  "${root}/scheduler/cost/hardware_profile.cpp"
  "${root}/scheduler/cost/step_cost.cpp")
target_link_libraries(fuzz_plan_files PUBLIC fuzz_attention)

triphase_fuzzer(fuzz_profile fuzz_profile.cpp fuzz_plan_files)
triphase_fuzzer(fuzz_plan fuzz_plan.cpp fuzz_plan_files)

triphase_fuzz_library(fuzz_cluster_files "${root}/runtime/context/context_facts.cpp")
target_link_libraries(fuzz_cluster_files PUBLIC fuzz_plan_files)
triphase_fuzzer(fuzz_clusters fuzz_clusters.cpp fuzz_cluster_files)
