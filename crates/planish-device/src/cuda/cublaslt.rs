//! cuBLASLt, found at run time when it is first asked for: products of matrices by the vendor, as steps of a sequence.
//!
//! The functions used here have not changed since CUDA 11.4, so any version will do.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use libloading::Library;

use super::driver::{Context, Region, Stream};
use super::library::{self, Wanted};
use super::locked;
use crate::error::{Error, ErrorKind};
use crate::vendor::{ByColumns, Float, VendorProduct};

/// Where to look.
const WANTED: Wanted = Wanted {
    what: "cuBLASLt",
    place: "PLANISH_CUBLASLT",
    names: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
    folders: &["lib64", "nvidia/cu13/lib", "nvidia/cublas/lib"],
    wheel: "nvidia-cublas-cu12",
};
/// Bytes that the calls of a card work in, one after the other: what the library advises for the largest cards.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;
/// What each operand begins at a multiple of: no copy of the card is wider.
pub(super) const ALIGN: u64 = 16;

/// Arithmetic and scales of f32.
const COMPUTE_32F: c_int = 68;
/// Attributes of a product: whether the first and the second factor are transposed.
const TURNS: [c_int; 2] = [3, 4];
/// Attributes of a choice of algorithms.
const MOST_WORKSPACE: c_int = 1;
const REDUCTIONS: c_int = 3;
const ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];
/// Parts of a sum are of f32 until they are one, and are added in a fixed order.
const REDUCE_IN_F32: u32 = 2;

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
type Destroy = unsafe extern "C" fn(Handle) -> c_int;
type Set = unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> c_int;

/// An algorithm, as the library keeps it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Algorithm([u64; 8]);

/// One answer of the library to what it would run.
#[repr(C)]
#[derive(Default)]
struct Answer {
    algorithm: Algorithm,
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

type Ask = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    c_int,
    *mut Answer,
    *mut c_int,
) -> c_int;
type Multiply = unsafe extern "C" fn(
    Handle,
    Handle,
    *const c_void,
    *const c_void,
    Handle,
    *const c_void,
    Handle,
    *const c_void,
    *const c_void,
    Handle,
    *mut c_void,
    Handle,
    *const Algorithm,
    *mut c_void,
    usize,
    *mut c_void,
) -> c_int;

/// The functions of the library.
struct Api {
    version: unsafe extern "C" fn() -> usize,
    status: unsafe extern "C" fn(c_int) -> *const c_char,
    create: Create,
    destroy: Destroy,
    product_create: unsafe extern "C" fn(*mut Handle, c_int, c_int) -> c_int,
    product_set: Set,
    product_destroy: Destroy,
    matrix_create: unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> c_int,
    matrix_destroy: Destroy,
    wish_create: Create,
    wish_set: Set,
    wish_destroy: Destroy,
    ask: Ask,
    multiply: Multiply,
}

impl Api {
    fn of(library: &'static Library) -> Result<Api, libloading::Error> {
        // SAFETY: these are the types that the library's header declares; the library is never closed.
        unsafe {
            Ok(Api {
                version: *library.get(b"cublasLtGetVersion")?,
                status: *library.get(b"cublasLtGetStatusName")?,
                create: *library.get(b"cublasLtCreate")?,
                destroy: *library.get(b"cublasLtDestroy")?,
                product_create: *library.get(b"cublasLtMatmulDescCreate")?,
                product_set: *library.get(b"cublasLtMatmulDescSetAttribute")?,
                product_destroy: *library.get(b"cublasLtMatmulDescDestroy")?,
                matrix_create: *library.get(b"cublasLtMatrixLayoutCreate")?,
                matrix_destroy: *library.get(b"cublasLtMatrixLayoutDestroy")?,
                wish_create: *library.get(b"cublasLtMatmulPreferenceCreate")?,
                wish_set: *library.get(b"cublasLtMatmulPreferenceSetAttribute")?,
                wish_destroy: *library.get(b"cublasLtMatmulPreferenceDestroy")?,
                ask: *library.get(b"cublasLtMatmulAlgoGetHeuristic")?,
                multiply: *library.get(b"cublasLtMatmul")?,
            })
        }
    }

    fn open(path: &Path) -> Result<(Api, PathBuf), libloading::Error> {
        // SAFETY: the library may be opened at any time and has no requirements of its loader.
        Ok((Api::of(unsafe { library::open(path) }?)?, path.to_owned()))
    }

    /// Name and version.
    fn name(&self) -> String {
        // SAFETY: takes nothing.
        let version = unsafe { (self.version)() };
        format!("cublaslt {}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
    }

    /// An error where the library answered `what` with anything but success.
    fn checked(&self, what: &dyn Fn() -> String, code: c_int) -> Result<(), Error> {
        let kind = match code {
            0 => return Ok(()),
            // No memory; no driver for it or no such card; nothing that makes such a product; the rest is about the call.
            3 => ErrorKind::OutOfMemory,
            1 | 8 => ErrorKind::Unavailable,
            15 => ErrorKind::Build,
            _ => ErrorKind::BadLaunch,
        };
        // SAFETY: the library answers any number with a constant text.
        let status = unsafe { CStr::from_ptr((self.status)(code)) }.to_string_lossy();
        Err(Error::new(kind, format!("{}: {}: {status}", self.name(), what())))
    }
}

impl Api {
    /// What is multiplied how.
    fn product(&self, product: &VendorProduct) -> Result<Owned, Error> {
        let checked = |code| self.checked(&|| format!("a product of {product}"), code);
        // SAFETY: a place for the result.
        let made = |to| checked(unsafe { (self.product_create)(to, COMPUTE_32F, code_of(Float::F32)) });
        let of = Owned::new(self.product_destroy, made)?;
        let [first, second, _] = product.by_columns();
        for (name, factor) in TURNS.into_iter().zip([first, second]) {
            checked(set(self.product_set, &of, name, &c_int::from(factor.turned)))?;
        }
        Ok(of)
    }

    /// The first factor, the second, and the result.
    fn matrices(&self, product: &VendorProduct) -> Result<[Owned; 3], Error> {
        let matrix = |m: ByColumns, ty: Float| {
            let (ty, rows, columns, stride) = (code_of(ty), m.rows as u64, m.columns as u64, m.stride as i64);
            let what = || format!("the matrices of a product of {product}");
            // SAFETY: a place for the result.
            let made = |to| self.checked(&what, unsafe { (self.matrix_create)(to, ty, rows, columns, stride) });
            Owned::new(self.matrix_destroy, made)
        };
        let [first, second, result] = product.by_columns();
        Ok([matrix(first, product.io)?, matrix(second, product.io)?, matrix(result, product.out)?])
    }

    /// What an algorithm must keep to.
    fn wish(&self) -> Result<Owned, Error> {
        let checked = |code| self.checked(&|| "wishes for an algorithm".into(), code);
        // SAFETY: a place for the result.
        let wish = Owned::new(self.wish_destroy, |to| checked(unsafe { (self.wish_create)(to) }))?;
        checked(set(self.wish_set, &wish, MOST_WORKSPACE, &(WORKSPACE_BYTES as u64)))?;
        checked(set(self.wish_set, &wish, REDUCTIONS, &REDUCE_IN_F32))?;
        for name in ALIGNMENTS {
            checked(set(self.wish_set, &wish, name, &(ALIGN as u32)))?;
        }
        Ok(wish)
    }
}

/// Something that the library made, destroyed when dropped.
struct Owned {
    handle: Handle,
    destroy: Destroy,
}

// SAFETY: descriptions of products are plain memory of the library, which no call changes once they are set.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    /// What `create` makes; `destroy` fits it.
    fn new(destroy: Destroy, create: impl FnOnce(*mut Handle) -> Result<(), Error>) -> Result<Owned, Error> {
        let mut handle = std::ptr::null_mut();
        create(&raw mut handle)?;
        Ok(Owned { handle, destroy })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: made in `new` and destroyed once, by the function that fits it.
        unsafe { (self.destroy)(self.handle) };
    }
}

/// The library on one card.
pub(super) struct CublasLt {
    api: Api,
    name: String,
    owner: u64,
    context: Arc<Context>,
    /// The library's state on the card, which threads may share.
    state: Owned,
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // The state goes with the context current; where that fails there is nothing left of it.
        let _ = self.context.current();
    }
}

/// The library, or why there is none, and the products made of it so far.
#[derive(Default)]
pub(super) struct Vendor {
    library: OnceLock<Result<Arc<CublasLt>, Error>>,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    workspace: Option<Arc<Region>>,
    products: HashMap<VendorProduct, Arc<Product>>,
}

/// A product with the algorithm that the library chose for it.
pub(super) struct Product {
    library: Arc<CublasLt>,
    pub of: VendorProduct,
    product: Owned,
    /// The first factor, the second, and the result.
    matrices: [Owned; 3],
    algorithm: Algorithm,
    workspace: Arc<Region>,
}

impl Vendor {
    /// The library, opened the first time.
    pub fn library(&self, context: &Arc<Context>, owner: u64) -> Result<&Arc<CublasLt>, Error> {
        self.library.get_or_init(|| CublasLt::new(context, owner).map(Arc::new)).as_ref().map_err(Error::clone)
    }

    /// `product` on `library`, the same again where it was made before; `memory` is asked for the first workspace.
    pub fn product(
        &self,
        library: &Arc<CublasLt>,
        product: &VendorProduct,
        memory: impl FnOnce() -> Result<Region, Error>,
    ) -> Result<Arc<Product>, Error> {
        let mut made = locked(&self.made);
        if let Some(known) = made.products.get(product) {
            return Ok(known.clone());
        }
        let workspace = made.workspace.clone().map_or_else(|| memory().map(Arc::new), Ok)?;
        made.workspace = Some(workspace.clone());
        let new = Arc::new(library.product(product, workspace)?);
        made.products.insert(*product, new.clone());
        Ok(new)
    }
}

impl CublasLt {
    /// The library on the card of `context`; an error where there is none, or none for this card.
    fn new(context: &Arc<Context>, owner: u64) -> Result<CublasLt, Error> {
        let (api, path) = WANTED.find(Api::open)?;
        context.current()?;
        let what = || format!("{} on {}", path.display(), context.name());
        // SAFETY: a place for the result, and a current context.
        let state = Owned::new(api.destroy, |to| api.checked(&what, unsafe { (api.create)(to) }))?;
        Ok(CublasLt { name: api.name(), api, owner, context: context.clone(), state })
    }

    /// Name and version.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `product` with the library's first choice of algorithm, which works in `workspace`.
    fn product(self: &Arc<Self>, product: &VendorProduct, workspace: Arc<Region>) -> Result<Product, Error> {
        let api = &self.api;
        let build = |why: String| Error::new(ErrorKind::Build, format!("{}: {why}", self.name));
        if product.bytes().contains(&0) {
            return Err(build(format!("a product of {product} is empty")));
        }
        self.context.current()?;
        let (of, matrices, wish) = (api.product(product)?, api.matrices(product)?, api.wish()?);
        let [first, second, result] = matrices.each_ref().map(|m| m.handle);
        let (mut answer, mut answers) = (Answer::default(), 0);
        let to = (&raw mut answer, &raw mut answers);
        let (state, about, wish) = (self.state.handle, of.handle, wish.handle);
        let what = || format!("an algorithm for a product of {product}");
        // SAFETY: descriptions that live, and places for one answer and a number.
        api.checked(&what, unsafe { (api.ask)(state, about, first, second, result, result, wish, 1, to.0, to.1) })?;
        if answers < 1 || answer.workspace > WORKSPACE_BYTES {
            return Err(build(format!("there is no {}", what())));
        }
        api.checked(&what, answer.state)?;
        let algorithm = answer.algorithm;
        Ok(Product { library: self.clone(), of: *product, product: of, matrices, algorithm, workspace })
    }
}

/// The library's number of a type.
fn code_of(ty: Float) -> c_int {
    match ty {
        Float::F32 => 0,
        Float::F16 => 2,
        Float::Bf16 => 14,
    }
}

/// Sets an attribute to a plain number of the size that it has; gives the library's code.
fn set<T: Copy>(with: Set, of: &Owned, name: c_int, value: &T) -> c_int {
    // SAFETY: the value is read during the call alone, as many bytes as it has.
    unsafe { with(of.handle, name, std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

impl Product {
    /// Whether it was made by the backend `owner`.
    pub fn is_of(&self, owner: u64) -> bool {
        self.library.owner == owner
    }
}

/// A product on memory that whoever has the call keeps.
pub(super) struct Call {
    pub product: Arc<Product>,
    /// Where A, B and C lie.
    pub places: [u64; 3],
    /// α and β.
    pub scales: [f32; 2],
}

impl Call {
    /// Starts the product after all work in `stream`, or adds it to what the stream captures; the context is current.
    ///
    /// # Safety
    /// The places are of as many bytes as the product says, in memory of this context that lives until it is over.
    pub unsafe fn start(&self, stream: &Stream) -> Result<(), Error> {
        let (p, [a, b, c], [alpha, beta]) = (&self.product, self.places.map(|at| at as *mut c_void), &self.scales);
        let [first, second, result] = p.matrices.each_ref().map(|m| m.handle);
        let scale = |v| std::ptr::from_ref::<f32>(v).cast::<c_void>();
        let workspace = p.workspace.pointer as *mut c_void;
        // SAFETY: descriptions that live and a workspace of the size that the algorithm was chosen for; scales are read
        // during the call; the caller vouches for the places.
        let code = unsafe {
            (p.library.api.multiply)(
                p.library.state.handle,
                p.product.handle,
                scale(alpha),
                b,
                first,
                a,
                second,
                scale(beta),
                c,
                result,
                c,
                result,
                &raw const p.algorithm,
                workspace,
                WORKSPACE_BYTES,
                stream.handle.cast(),
            )
        };
        p.library.api.checked(&|| format!("a product of {}", p.of), code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No card is needed for this much; where the library is not here, the error says what would bring it.
    #[test]
    fn the_library_takes_every_description_or_is_said_to_be_absent() {
        let api = match WANTED.find(Api::open) {
            Ok((api, _)) => api,
            Err(e) => {
                assert!(e.to_string().starts_with("no cuBLASLt in "), "{e}");
                return assert!(e.hint().is_some_and(|h| h.contains("nvidia-cublas-cu12")), "{e}");
            }
        };
        assert!(api.name().starts_with("cublaslt 1"), "{}", api.name());
        let refused = api.checked(&|| "this".into(), 15).expect_err("a refusal").to_string();
        assert!(refused.ends_with("this: CUBLAS_STATUS_NOT_SUPPORTED"), "{refused}");
        api.wish().expect("attributes of the sizes that they have");
        for turned in [[false, false], [false, true], [true, true]] {
            for (io, out) in [(Float::F16, Float::F32), (Float::Bf16, Float::Bf16), (Float::F32, Float::F32)] {
                let product = VendorProduct { sizes: [7, 65, 31], turned, io, out };
                api.product(&product).expect("a product");
                api.matrices(&product).expect("matrices whose strides are as long as their columns");
            }
        }
    }
}
