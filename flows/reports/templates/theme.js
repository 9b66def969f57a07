try{var t=localStorage.getItem("tributary-theme");if(t)document.documentElement.dataset.theme=t}catch(e){}
