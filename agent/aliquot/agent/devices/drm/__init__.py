"""Cards of the kernel's DRM drivers (amdgpu, xe), from the kernel's own files: no vendor's library takes part."""
